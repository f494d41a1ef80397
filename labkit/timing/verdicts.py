"""A verdict on two variants, and the interval it stands on. `labkit.timing` states the rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

__all__ = ["Verdict", "bootstrap_interval", "median_interval", "wider_interval"]

CONFIDENCE = 0.99
RESAMPLES = 2000


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

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data, for JSON."""
        return {**asdict(self), "outcome": self.outcome}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Verdict:
        """Read what `to_dict` returned."""
        return cls(**{key: value for key, value in body.items() if key != "outcome"})

    def __str__(self) -> str:
        interval = (
            f"time ratio {self.ratio:.2f}, {self.confidence:.0%} interval {self.low:.2f}-{self.high:.2f}, "
        )
        interval += f"n={self.n}" + (f", noise floor {self.floor:.2f}" if self.floor > 1 else "")
        case = (value if isinstance(value, str) else f"{key}={value:g}" for key, value in self.case.items())
        measured = ", ".join(filter(None, [self.evidence, *case]))
        where = f" [{measured}]" if measured else ""
        if self.outcome == "cannot tell":
            return f"{self.a} against {self.b}: cannot tell ({interval}){where}"
        return f"{self.a} is {self.outcome} than {self.b} ({interval}){where}"


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The ends of an interval that covers the median of independent samples, whatever the distribution.

    It stands on order statistics. Too few samples to reach the confidence have infinite ends: "cannot tell".

    >>> median_interval([1.0, 2.0, 3.0])
    (-inf, inf)
    """
    ordered, n = sorted(samples), len(samples)
    below = itertools.accumulate(math.comb(n, i) / 2**n for i in range(n))  # P(Binomial(n, 1/2) <= i)
    outside = sum(chance <= (1 - CONFIDENCE) / 2 for chance in below)
    return (ordered[outside - 1], ordered[n - outside]) if outside else (-math.inf, math.inf)


def bootstrap_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The ends of the percentile interval of the median of paired ratios, by a circular block bootstrap.

    Blocks are the cube root of n rounds long. Alone it is too narrow where rounds are few: it holds the median in 94 %
    of runs of twelve rounds. The seed is fixed, so equal ratios give equal ends.

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
    """The interval of a median by the rule of `labkit.timing`: the outer ends of the two above."""
    exact, resampled = median_interval(samples), bootstrap_interval(samples)
    return min(exact[0], resampled[0]), max(exact[1], resampled[1])
