"""Honest timing: interleaved rounds, medians with a spread, and a verdict only where the intervals part."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Measurement", "Verdict", "compare", "interleave"]

CONFIDENCE = 0.99


@dataclass(frozen=True)
class Measurement:
    """Samples of one variant, in seconds, in the order of the rounds they were taken in.

    >>> Measurement("A", (0.25, 0.5, 0.75)).median
    0.5
    """

    name: str
    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"measurement {self.name!r} has no samples")

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def median(self) -> float:
        """The middle sample, in seconds."""
        return quantile(self.samples, 0.5)

    @property
    def p10(self) -> float:
        """One sample in ten is below this, in seconds."""
        return quantile(self.samples, 0.1)

    @property
    def p90(self) -> float:
        """One sample in ten is above this, in seconds."""
        return quantile(self.samples, 0.9)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.median * 1e3:.3g} ms ({self.p10 * 1e3:.3g}-{self.p90 * 1e3:.3g}, n={self.n})"
        )


@dataclass(frozen=True)
class Verdict:
    """Whether `a` is faster or slower than `b`, or whether the spread does not let anyone tell.

    `ratio` is the median over rounds of time(a) / time(b); `low`..`high` its distribution-free interval at
    the stated confidence. Below 1 means `a` takes less time.
    """

    a: str
    b: str
    ratio: float
    low: float
    high: float
    n: int
    confidence: float = CONFIDENCE

    @property
    def outcome(self) -> str:
        """'faster', 'slower' or 'cannot tell'."""
        if self.high < 1:
            return "faster"
        if self.low > 1:
            return "slower"
        return "cannot tell"

    @property
    def speedup(self) -> float:
        """How many times as many runs of `a` as of `b` fit into the same time."""
        return 1 / self.ratio

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Verdict:
        return cls(**{k: body[k] for k in ("a", "b", "ratio", "low", "high", "n", "confidence")})

    def __str__(self) -> str:
        percent = f"{self.confidence:.0%}"
        interval = (
            f"time ratio {self.ratio:.2f}, {percent} interval {self.low:.2f}-{self.high:.2f}, n={self.n}"
        )
        if self.outcome == "cannot tell":
            return f"{self.a} against {self.b}: cannot tell ({interval})"
        return f"{self.a} is {self.outcome} than {self.b} ({interval})"


def quantile(samples: tuple[float, ...] | list[float], q: float) -> float:
    """The q-quantile (0..1) of `samples`, linear between order statistics, as numpy's default.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median_interval(samples: list[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """An interval that covers the median at least this often, whatever the distribution (order statistics).

    With too few samples to reach the confidence the interval is unbounded, which reads as "cannot tell".

    >>> median_interval([1.0, 2.0, 3.0])
    (-inf, inf)
    """
    ordered, n = sorted(samples), len(samples)
    tail, cumulative = (1 - confidence) / 2, 0.0
    k = -1  # the largest k with P(Binomial(n, 1/2) <= k) <= tail
    for i in range(n):
        cumulative += math.comb(n, i) / 2**n
        if cumulative > tail:
            break
        k = i
    if k < 0:
        return -math.inf, math.inf
    return ordered[k], ordered[n - 1 - k]


def compare(a: Measurement, b: Measurement, confidence: float = CONFIDENCE) -> Verdict:
    """Compare two variants measured in the same rounds, pair by pair, so that a drifting machine cancels out.

    Raises ValueError when the two were not measured in the same number of rounds.

    >>> ten = tuple(0.010 + 0.0001 * i for i in range(20))
    >>> str(compare(Measurement("C", ten), Measurement("B", tuple(2 * s for s in ten))))
    'C is faster than B (time ratio 0.50, 99% interval 0.50-0.50, n=20)'
    """
    if a.n != b.n:
        raise ValueError(f"{a.name!r} has {a.n} rounds and {b.name!r} has {b.n}: pairs need the same rounds")
    ratios = [x / y for x, y in zip(a.samples, b.samples, strict=True)]
    low, high = median_interval(ratios, confidence)
    return Verdict(a.name, b.name, quantile(ratios, 0.5), low, high, a.n, confidence)


def interleave(
    variants: Mapping[str, Callable[[], Any]],
    rounds: int = 20,
    warmup: int = 2,
    barrier: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measurement]:
    """Time every variant once a round, in turn, with the garbage collector off and a barrier before each.

    Each callable runs one complete piece of work. The order rotates from round to round, so that no
    variant always follows the same one. Returns seconds, one sample a round. On ranks, call it on every
    rank with the same arguments and a barrier of the group.

    Raises ValueError for no variants or fewer than one round.

    >>> list(interleave({"a": lambda: None, "b": lambda: None}, rounds=3))
    ['a', 'b']
    """
    if not variants:
        raise ValueError("nothing to time: give at least one variant")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    names = list(variants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(warmup):
        for name in names:
            variants[name]()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            turn = i % len(names)
            for name in names[turn:] + names[:turn]:
                if barrier is not None:
                    barrier()
                start = clock()
                variants[name]()
                samples[name].append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return {name: Measurement(name, tuple(taken)) for name, taken in samples.items()}
