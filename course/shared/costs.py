"""A model of the cost of collectives: alpha seconds a step and beta seconds a byte, stated, or fitted to times.

Nothing here is measured or run: the results are a model's, and are to be labelled so. The terms:

- ring all_reduce: 2 (p - 1) steps, 2 (p - 1) / p of the message (Patarasuk and Yuan, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69, 2009);
- ring all_gather and reduce_scatter, its two halves: p - 1 steps, and (p - 1) / p of the whole (Thakur, Rabenseifner
  and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19,
  2005);
- all_reduce by recursive doubling: log2 p steps of the whole message each (the same paper), for powers of two; other
  worlds are rounded up. A library takes such an algorithm for small messages.

The arithmetic of the reduction, gamma in these papers, is not kept apart: a fit finds it inside of beta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "ALGORITHMS",
    "OPERATIONS",
    "Compute",
    "Fit",
    "Link",
    "Step",
    "fit_compute",
    "fit_link",
    "ring_bytes",
    "step",
    "terms",
]

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
ALGORITHMS = ("ring", "doubling", "best")


def terms(operation: str, world_size: int, nbytes: float, algorithm: str = "ring") -> tuple[float, float]:
    """The number of steps of a collective and the bytes that each rank sends in them.

    Args:
        operation: one of OPERATIONS.
        world_size: number of ranks.
        nbytes: bytes on each rank before the call.
        algorithm: 'ring', or 'doubling' (recursive doubling; all_reduce only).

    Returns:
        Steps and bytes.

    Raises:
        ValueError: operation or algorithm are unknown, the world is below 1, or the bytes are below 0.

    >>> terms("all_reduce", 4, 1024), terms("all_reduce", 4, 1024, "doubling"), terms("all_reduce", 1, 1024)
    ((6, 1536.0), (2, 2048.0), (0, 0.0))
    """
    whole("world_size", world_size)
    number("bytes", nbytes, zero=True)
    if operation not in OPERATIONS:
        raise ValueError(f"no cost is known of {operation!r}: there is {', '.join(OPERATIONS)}")
    if algorithm not in ALGORITHMS[:2]:
        raise ValueError(f"unknown algorithm {algorithm!r}: there is {' and '.join(ALGORITHMS[:2])}")
    others = world_size - 1
    if algorithm == "doubling":
        if operation != "all_reduce":
            raise ValueError(f"recursive doubling is stated for all_reduce here, not for {operation}")
        doublings = math.ceil(math.log2(world_size))
        return doublings, float(doublings * nbytes)
    if operation == "all_gather":
        return others, float(others * nbytes)
    share = others / world_size * nbytes
    return (2 * others, 2 * share) if operation == "all_reduce" else (others, share)


def ring_bytes(operation: str, size: int, message: int) -> float:
    """The least bytes that a rank sends in a ring of `size` ranks, with `message` bytes on each before the call.

    >>> ring_bytes("all_reduce", 4, 1024)
    1536.0
    """
    if operation == "all_to_all":
        return (size - 1) / size * message
    # in a broadcast ranks send differently much
    return terms(operation, size, message)[1] if operation in OPERATIONS else float("nan")


@dataclass(frozen=True)
class Link:
    """The link of every rank to the next one.

    Args:
        alpha: seconds a step.
        beta: seconds a byte.
        source: where the constants are from.

    Raises:
        ValueError: a constant is no finite number of 0 or more.

    >>> Link(alpha=10e-6, beta=1 / 25e9).seconds("all_reduce", 2, 0)
    2e-05
    >>> Link(alpha=-1, beta=0)
    Traceback (most recent call last):
    ValueError: alpha must be a finite number of 0 or more, got -1
    """

    alpha: float
    beta: float
    source: str = "stated"

    def __post_init__(self) -> None:
        number("alpha", self.alpha, zero=True)
        number("beta", self.beta, zero=True)

    @property
    def gbytes_per_s(self) -> float:
        """1 / beta in GB/s; infinite where a byte costs nothing."""
        return 1e-9 / self.beta if self.beta else math.inf

    def seconds(self, operation: str, world_size: int, nbytes: float, algorithm: str = "ring") -> float:
        """The model's seconds for one collective.

        Args:
            operation, world_size, nbytes: as for `terms`.
            algorithm: as for `terms`, or 'best' for the cheaper one for this message.
        """
        if algorithm == "best":
            both = ALGORITHMS[:2] if operation == "all_reduce" else ALGORITHMS[:1]
            return min(self.seconds(operation, world_size, nbytes, one) for one in both)
        steps, sent = terms(operation, world_size, nbytes, algorithm)
        return steps * self.alpha + sent * self.beta


@dataclass(frozen=True)
class Compute:
    """The cost of a rank's own work.

    Args:
        overhead: seconds a forward, whatever its shard.
        rate: flops a second.
        source: where the constants are from.

    Raises:
        ValueError: the overhead is below 0, or the rate is not above 0.

    >>> Compute(overhead=1e-3, rate=1e9).seconds(2e6)
    0.003
    """

    overhead: float
    rate: float
    source: str = "stated"

    def __post_init__(self) -> None:
        number("overhead", self.overhead, zero=True)
        number("rate", self.rate)

    def seconds(self, flops: float) -> float:
        """The model's seconds for a number of flops."""
        return self.overhead + flops / self.rate


@dataclass(frozen=True)
class Step:
    """A step of the model, in seconds: a rank's own work, then its collectives; nothing overlaps.

    >>> Step(0.003, 0.001).share
    0.25
    """

    compute: float
    communication: float

    @property
    def seconds(self) -> float:
        return self.compute + self.communication

    @property
    def share(self) -> float:
        """The communication's share of the step, 0 to 1."""
        return self.communication / self.seconds if self.seconds else 0.0


def step(
    compute: Compute,
    link: Link,
    world_size: int,
    flops: float,
    messages: Iterable[float],
    *,
    algorithm: str = "ring",
    crowding: float = 1.0,
) -> Step:
    """Model one step of a rank: its flops, then one all_reduce for each message.

    Args:
        compute, link: the constants.
        world_size: number of ranks.
        flops: of the rank.
        messages: bytes of each.
        algorithm: one of ALGORITHMS.
        crowding: ranks for each core, where there are more ranks than cores; they take turns, so work takes that many
            times as long.

    Returns:
        The step.

    Raises:
        ValueError: the algorithm is unknown, or as for `terms`.

    >>> found = step(Compute(0, 1e9), Link(1e-3, 0), 2, 6e6, [4, 4])
    >>> found.compute, found.communication
    (0.006, 0.004)
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}: there is {', '.join(ALGORITHMS)}")
    talk = sum(link.seconds("all_reduce", world_size, n, algorithm) for n in messages)
    return Step(compute.seconds(flops) * max(1.0, crowding), talk)


@dataclass(frozen=True)
class Fit:
    """A fitted Link or Compute, and its distance from each time it was fitted to: fitted / measured - 1.

    >>> Fit(Link(0, 0), (0.1, -0.3)).worst
    0.3
    """

    found: Any
    residuals: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest distance, as a share of the measured time."""
        return max(abs(r) for r in self.residuals)


def fit_link(nbytes: Sequence[float], seconds: Sequence[float], world_size: int, source: str = "") -> Fit:
    """Fit alpha and beta of a ring to times of its all_reduce over sizes.

    The fit minimises the *relative* error (squares), because a sweep goes over orders of magnitude and the largest size
    would decide alone otherwise. Neither constant is below 0.

    Args:
        nbytes: sizes.
        seconds: medians.
        world_size: ranks of the ring.
        source: for the link.

    Returns:
        The fit of a `Link`.

    Raises:
        ValueError: there are fewer than two sizes, the world is below 2, or a time is not above 0.

    >>> link = fit_link([0, 1000], [2e-5, 3e-5], world_size=2).found
    >>> round(link.alpha, 9), round(link.beta, 12)
    (1e-05, 1e-08)
    """
    whole("world_size", world_size, 2)
    parts = [terms("all_reduce", world_size, n) for n in nbytes]
    (alpha, beta), residuals = _least([p[0] for p in parts], [p[1] for p in parts], seconds)
    return Fit(Link(alpha, beta, source or f"fitted to {world_size} ranks"), residuals)


def fit_compute(flops: Sequence[float], seconds: Sequence[float], source: str = "") -> Fit:
    """Fit overhead and rate to times of a rank's own work on shards of different sizes, as `fit_link` fits.

    Args:
        flops: of each shard.
        seconds: medians.
        source: for the constants.

    Returns:
        The fit of a `Compute`.

    Raises:
        ValueError: as for `fit_link`, or more work did not take longer, because no rate can be told then.

    >>> fit_compute([1e6, 3e6], [2e-3, 4e-3]).found
    Compute(overhead=0.001, rate=1000000000.0, source='fitted')
    """
    (overhead, each), residuals = _least([1.0] * len(flops), flops, seconds)
    if not each:
        raise ValueError("more work took no more time here, so no rate can be fitted: measure larger shards")
    return Fit(Compute(round(overhead, 12), round(1 / each, 3), source or "fitted"), residuals)


def _least(
    first: Sequence[float], second: Sequence[float], seconds: Sequence[float]
) -> tuple[tuple[float, float], tuple[float, ...]]:
    """Two constants, neither below 0, that minimise the sum of squared relative errors; and these errors."""
    if len({*second}) < 2 or len(first) != len(seconds):
        raise ValueError("a line needs times at two sizes or more")
    for one in seconds:
        number("a time", one)
    times = np.asarray(seconds, dtype=float)
    rows = np.stack([np.asarray(first, dtype=float), np.asarray(second, dtype=float)], axis=1)
    scale = rows.max(axis=0)
    scaled = rows / scale / times[:, None]
    found = np.linalg.lstsq(scaled, np.ones(len(times)), rcond=None)[0]
    if found.min() < 0:  # two constants: the best line within bounds lies on one of the two
        alone = [float(scaled[:, i].sum() / (scaled[:, i] ** 2).sum()) for i in (0, 1)]
        ends = [np.array([alone[0], 0.0]), np.array([0.0, alone[1]])]
        found = min(ends, key=lambda end: float(((scaled @ end - 1) ** 2).sum()))
    a, b = (float(v) for v in found / scale)
    return (a, b), tuple(float(v) for v in scaled @ found - 1)


def whole(name: str, value: Any, least: int = 1) -> int:
    """Check that a value is a whole number of at least `least`.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def number(name: str, value: Any, zero: bool = False) -> float:
    """Check that a value is a finite number above 0 (`zero`: or 0).

    Raises:
        ValueError: it is not.
    """
    good = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(
            f"{name} must be a finite number {'of 0 or more' if zero else 'above 0'}, got {value!r}"
        )
    return float(value)
