"""Measurements, their spread, and verdicts on pairs of them. `labkit.timing` states the rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

__all__ = [
    "CONFIDENCE",
    "Measurement",
    "Verdict",
    "bootstrap_interval",
    "by_slowest",
    "compare",
    "compare_all",
    "median_interval",
    "noise_floor",
    "quantile",
    "samples",
    "slowest",
    "wider_interval",
]

CONFIDENCE = 0.99
RESAMPLES = 2000


@dataclass(frozen=True)
class Measurement:
    """Samples of one variant.

    Args:
        name: of the variant.
        samples: seconds, in the order of the rounds.

    Raises:
        ValueError: there are no samples, or one is not a finite number of at least 0.

    >>> Measurement("A", (0.25, 0.5, 0.75)).median
    0.5
    """

    name: str
    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"measurement {self.name!r} has no samples")
        for i, sample in enumerate(self.samples):
            if not (math.isfinite(sample) and sample >= 0):
                raise ValueError(
                    f"sample {i} of {self.name!r} is {sample:g}: a time is a finite number of seconds, not negative"
                )

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def median(self) -> float:
        """The middle sample, in seconds."""
        return self.percentile(50)

    @property
    def p10(self) -> float:
        """One sample in ten is below this, in seconds."""
        return self.percentile(10)

    @property
    def p90(self) -> float:
        """One sample in ten is above this, in seconds."""
        return self.percentile(90)

    def percentile(self, percent: float) -> float:
        """The time that `percent` of the samples are below.

        Args:
            percent: 0 to 100.

        Returns:
            Seconds.

        Raises:
            ValueError: `percent` is outside of 0 to 100.

        >>> Measurement("A", (0.25, 0.5, 0.75)).percentile(100)
        0.75
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile is from 0 to 100, got {percent!r}")
        return quantile(self.samples, percent / 100)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.median * 1e3:.3g} ms ({self.p10 * 1e3:.3g}-{self.p90 * 1e3:.3g}, n={self.n})"
        )


@dataclass(frozen=True)
class Verdict:
    """Whether `a` is faster or slower than `b`, or whether the spread does not allow to tell.

    Args:
        a, b: names of the variants.
        ratio: median over rounds of time(a) / time(b); below 1 `a` takes less time.
        low, high: the interval of the ratio, by the rule of `labkit.timing`.
        n: number of rounds.
        confidence: of the interval.
        floor: how far A strayed from A, as a ratio of at least 1 (1: not measured); what lies within it is noise.
        evidence: on what it was measured, such as 'gloo · cpu' or 'host only' ('': the label of the report).
        case: what else both had in common, such as {'size': 'tiny'}.

    >>> Verdict("C", "B", 0.98, 0.97, 0.99, 40).outcome
    'faster'
    >>> str(Verdict("C", "B", 0.98, 0.97, 0.99, 40, evidence="host only", case={"blocks": 8}))
    'C is faster than B (time ratio 0.98, 99% interval 0.97-0.99, n=40) [host only, blocks=8]'
    >>> Verdict("C", "B", 0.98, 0.97, 0.99, 40, floor=1.02).outcome
    'cannot tell'
    """

    a: str
    b: str
    ratio: float
    low: float
    high: float
    n: int
    confidence: float = CONFIDENCE
    floor: float = 1.0
    evidence: str = ""
    case: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def outcome(self) -> str:
        """'faster', 'slower' or 'cannot tell'."""
        if self.high * self.floor < 1:
            return "faster"
        if self.low > self.floor:
            return "slower"
        return "cannot tell"

    @property
    def speedup(self) -> float:
        """How many times as many runs of `a` as of `b` fit into the same time."""
        return 1 / self.ratio

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data, for JSON."""
        return {**asdict(self), "outcome": self.outcome}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Verdict:
        """Read what `to_dict` returned."""
        return cls(**{key: value for key, value in body.items() if key != "outcome"})

    def row(self) -> dict[str, Any]:
        """The verdict as the row of a table: evidence, a column for each entry of `case`, then the other fields.

        >>> row = Verdict("C", "B", 0.98, 0.97, 0.99, 40, evidence="host only", case={"blocks": 8}).row()
        >>> list(row)
        ['evidence', 'blocks', 'a', 'b', 'ratio', 'low', 'high', 'n', 'confidence', 'floor', 'outcome']
        """
        fields = self.to_dict()
        return {"evidence": fields.pop("evidence"), **fields.pop("case"), **fields}

    @property
    def where(self) -> str:
        """Evidence and case in words: 'host only, mlp, tiny', 'blocks=8'."""
        case = (value if isinstance(value, str) else f"{key}={value:g}" for key, value in self.case.items())
        return ", ".join(filter(None, [self.evidence, *case]))

    def over(self, floor: float) -> Verdict:
        """Hold the verdict against a noise floor.

        Args:
            floor: a ratio of at least 1.

        Returns:
            The verdict with this floor.

        Raises:
            ValueError: the floor is below 1.
        """
        if not (math.isfinite(floor) and floor >= 1):
            raise ValueError(f"a noise floor is a ratio of at least 1, got {floor!r}")
        return replace(self, floor=floor)

    def __str__(self) -> str:
        percent = f"{self.confidence:.0%}"
        interval = (
            f"time ratio {self.ratio:.2f}, {percent} interval {self.low:.2f}-{self.high:.2f}, n={self.n}"
        )
        interval += f", noise floor {self.floor:.2f}" if self.floor > 1 else ""
        where = f" [{self.where}]" if self.where else ""
        if self.outcome == "cannot tell":
            return f"{self.a} against {self.b}: cannot tell ({interval}){where}"
        return f"{self.a} is {self.outcome} than {self.b} ({interval}){where}"


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile of samples, linear between order statistics.

    Args:
        samples: numbers.
        q: 0 to 1.

    Raises:
        ValueError: there are no samples, or one is not a number.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    values = np.asarray(samples, dtype=float)
    if not values.size or np.isnan(values).any():
        raise ValueError("a quantile needs samples" if not values.size else "a quantile of NaN says nothing")
    return float(np.quantile(values, q))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """An interval that covers the median at least with this confidence, whatever the distribution (order statistics).

    Args:
        samples: independent numbers.

    Returns:
        Its ends; infinite ones where there are too few samples to reach the confidence, which reads as "cannot tell".

    >>> median_interval([1.0, 2.0, 3.0])
    (-inf, inf)
    """
    ordered, n = sorted(samples), len(samples)
    tail, cumulative = (1 - CONFIDENCE) / 2, 0.0
    k = -1  # the largest k with P(Binomial(n, 1/2) <= k) <= tail
    for i in range(n):
        cumulative += math.comb(n, i) / 2**n
        if cumulative > tail:
            break
        k = i
    if k < 0:
        return -math.inf, math.inf
    return ordered[k], ordered[n - 1 - k]


def bootstrap_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The percentile interval of the median of paired ratios, by a circular block bootstrap.

    Blocks are the cube root of n rounds long. Alone it is too narrow where rounds are few (it holds the median in 94 %
    of runs of twelve rounds), so `compare` takes the wider of this and `median_interval`.

    Args:
        ratios: one for each round.

    Returns:
        Its ends; the seed is fixed, so equal ratios give equal ends.

    >>> low, high = bootstrap_interval([1.0, 1.1, 1.2, 1.3, 1.4])
    >>> 1.0 <= low <= 1.2 <= high <= 1.4
    True
    """
    values = np.asarray(ratios, dtype=float)
    n, draw = len(values), np.random.default_rng(0)
    block = max(1, round(n ** (1 / 3)))
    starts = draw.integers(0, n, (RESAMPLES, -(-n // block)))
    rounds = (starts[:, :, None] + np.arange(block)) % n
    medians = np.median(values[rounds.reshape(RESAMPLES, -1)[:, :n]], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def wider_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The interval of a median by the rule of `labkit.timing`.

    Args:
        samples: one for each round.

    Returns:
        The lower of the lower ends and the higher of the higher ends of `median_interval` and `bootstrap_interval`.
    """
    exact, resampled = median_interval(samples), bootstrap_interval(samples)
    return min(exact[0], resampled[0]), max(exact[1], resampled[1])


def compare(
    a: Measurement,
    b: Measurement,
    floor: float = 1.0,
    evidence: str = "",
    case: Mapping[str, Any] | None = None,
) -> Verdict:
    """Compare two variants measured in the same rounds, pair by pair, by the rule of `labkit.timing`.

    Args:
        a, b: measurements of the same rounds.
        floor: what `noise_floor` returned for the same rounds.
        evidence, case: where the two were measured; see `Verdict`.

    Returns:
        The verdict.

    Raises:
        ValueError: the two were not measured in the same number of rounds, in one round only, or with a time of 0 to
            divide by.

    >>> ten = tuple(0.010 + 0.0001 * i for i in range(20))
    >>> str(compare(Measurement("C", ten), Measurement("B", tuple(2 * s for s in ten))))
    'C is faster than B (time ratio 0.50, 99% interval 0.50-0.50, n=20)'
    """
    if a.n != b.n:
        raise ValueError(f"{a.name!r} has {a.n} rounds and {b.name!r} has {b.n}: pairs need the same rounds")
    if a.n == 1:
        raise ValueError(f"{a.name!r} and {b.name!r} were timed in one round: one round has no spread")
    for one in (a, b):
        if 0 in one.samples:
            raise ValueError(
                f"sample {one.samples.index(0)} of {one.name!r} is 0 s: no ratio can be made of it"
            )
    ratios = [x / y for x, y in zip(a.samples, b.samples, strict=True)]
    verdict = Verdict(a.name, b.name, quantile(ratios, 0.5), *wider_interval(ratios), a.n)
    return replace(verdict.over(floor), evidence=evidence, case=dict(case or {}))


def noise_floor(once: Measurement, again: Measurement) -> float:
    """How far the same thing, timed twice in the same rounds, strayed from itself.

    Where even A against A is told apart, the farther end of its interval is the floor: nothing nearer can be trusted.

    Args:
        once, again: measurements of the same variant.

    Returns:
        A ratio of at least 1.

    Raises:
        ValueError: as for `compare`.

    >>> same = Measurement("A", (0.010, 0.011, 0.012))
    >>> noise_floor(same, same)
    1.0
    """
    control = compare(once, again)
    strayed = [control.ratio] if control.outcome == "cannot tell" else [control.low, control.high]
    return max(max(ratio, 1 / ratio) for ratio in strayed)


def slowest(name: str, per_rank: Mapping[int, Sequence[float]]) -> Measurement:
    """Combine the samples of all ranks into one measurement: a round takes as long as its slowest rank.

    Args:
        name: of the measurement.
        per_rank: seconds by rank.

    Returns:
        The measurement.

    Raises:
        ValueError: there are no ranks, or two ranks have different numbers of rounds.

    >>> slowest("A", {0: [0.25, 0.5], 1: [0.125, 0.75]}).samples
    (0.25, 0.75)
    """
    if not per_rank:
        raise ValueError(f"measurement {name!r} has samples of no rank")
    (first, taken), *others = per_rank.items()
    for rank, samples in others:
        if len(samples) != len(taken):
            raise ValueError(
                f"measurement {name!r}: rank {first} has {len(taken)} rounds and rank {rank} has {len(samples)}"
            )
    # each rank's samples are checked before the maximum could hide a NaN
    each = [Measurement(f"{name}, rank {rank}", tuple(samples)).samples for rank, samples in per_rank.items()]
    return Measurement(name, tuple(max(together) for together in zip(*each, strict=True)))


def samples(taken: Mapping[str, Measurement]) -> pd.DataFrame:
    """Lay measurements out as a table; `PerRank.frame` puts the tables of several ranks into one.

    Args:
        taken: measurements by variant, as `interleave` returns them.

    Returns:
        A row for each round of each variant, with the columns variant, round and seconds.

    >>> samples({"A": Measurement("A", (0.25, 0.5))})
      variant  round  seconds
    0       A      0     0.25
    1       A      1     0.50
    """
    rows = [(name, i, s) for name, one in taken.items() for i, s in enumerate(one.samples)]
    return pd.DataFrame(rows, columns=["variant", "round", "seconds"])


def compare_all(samples: pd.DataFrame, pairs: Iterable[tuple[str, str]], evidence: str = "") -> list[Verdict]:
    """Compare pairs of variants, each by its slowest rank in every round.

    Args:
        samples: a table with the columns variant, rank and seconds, in the order of the rounds.
        pairs: which variants to compare, the first of a pair with the second. A pair with a variant that was not
            timed is left out.
        evidence: what the times were taken on, such as 'gloo · cpu' or 'host only'.

    Raises:
        ValueError: ranks have different numbers of rounds, or there is one round only.

    >>> one = pd.DataFrame({"variant": ["A"] * 9 + ["B"] * 9, "rank": 0, "seconds": [0.25] * 9 + [0.5] * 9})
    >>> [str(verdict) for verdict in compare_all(one, [("A", "B")])]
    ['A is faster than B (time ratio 0.50, 99% interval 0.50-0.50, n=9)']
    """
    taken = by_slowest(samples, "variant")
    return [compare(taken[a], taken[b], evidence=evidence) for a, b in pairs if a in taken and b in taken]


def by_slowest(samples: pd.DataFrame, column: str) -> dict[Any, Measurement]:
    """Make a measurement for each value of a column; see `slowest`.

    Args:
        samples: a table with `rank`, `seconds` and the column.
        column: its name; a value is the name of its measurement.

    Returns:
        Measurements by value.

    Raises:
        ValueError: as for `slowest`.

    >>> table = pd.DataFrame({"way": list("aabb"), "rank": [0, 1, 0, 1], "seconds": [0.25, 0.5, 0.75, 0.5]})
    >>> by_slowest(table, "way")["b"]
    Measurement(name='b', samples=(0.75,))
    """
    return {
        value: slowest(str(value), {rank: list(taken) for rank, taken in rows.groupby("rank")["seconds"]})
        for value, rows in samples.groupby(column, sort=False)
    }
