"""Times of variants, taken in interleaved rounds, and what they say about two of them."""

from __future__ import annotations

import functools
import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.timing.verdicts import Verdict, wider_interval

if TYPE_CHECKING:
    from labkit.per_rank import PerRank

__all__ = ["Times", "check_rounds", "interleave"]


class Times:
    """Seconds of variants, by round and by rank. A round of several ranks takes as long as its slowest rank.

    Args:
        seconds: the seconds of each variant in the order of the rounds; or a table with the columns variant and
            seconds, a row for each round in their order, and rank where there are several. Further columns are kept.
        evidence: what they were taken on, such as 'gloo · cpu' or 'host only'; a verdict says it.

    Raises:
        ValueError: a variant has no times, a time is not a finite number of at least 0, or ranks have different
            numbers of rounds.

    >>> times = Times({"B": [0.5] * 9, "C": [0.25] * 9}, "host only")
    >>> times.median["C"], list(times["B"][:2])
    (np.float64(0.25), [np.float64(0.5), np.float64(0.5)])
    >>> print(times.compare("C", "B"))
    C is faster than B (time ratio 0.50, 99% interval 0.50-0.50, n=9) [host only]
    """

    def __init__(self, seconds: Mapping[str, Sequence[float]] | pd.DataFrame, evidence: str = "") -> None:
        if not isinstance(seconds, pd.DataFrame):
            for name, taken in seconds.items():
                if not len(taken):
                    raise ValueError(f"variant {name!r} has no times")
            rows = [(name, i, float(s)) for name, taken in seconds.items() for i, s in enumerate(taken)]
            seconds = pd.DataFrame(rows, columns=["variant", "round", "seconds"])
        missing = [column for column in ("variant", "seconds") if column not in seconds.columns]
        if missing:
            raise ValueError(f"times need the column {missing[0]!r}: there is {', '.join(seconds.columns)}")
        self.frame, self.evidence = seconds, evidence
        self._rounds = {
            str(name): _slowest(str(name), rows) for name, rows in seconds.groupby("variant", sort=False)
        }

    @classmethod
    def merge(cls, per_rank: PerRank[Times] | Mapping[int, Times], evidence: str = "") -> Times:
        """Put the times of all ranks, as `ranks.run` returns them, into one.

        Raises:
            ValueError: there are no ranks, or they have different numbers of rounds.

        >>> Times.merge({0: Times({"A": [0.25, 0.5]}), 1: Times({"A": [0.125, 0.75]})})["A"]
        array([0.25, 0.75])
        """
        parts = [times.frame.assign(rank=rank) for rank, times in per_rank.items()]
        if not parts:
            raise ValueError("there are times of no rank")
        return cls(pd.concat(parts, ignore_index=True), evidence)

    @property
    def variants(self) -> list[str]:
        """The names of the variants."""
        return list(self._rounds)

    def __getitem__(self, variant: str) -> np.ndarray:
        """The seconds of a variant's rounds, each that of its slowest rank."""
        if variant not in self._rounds:
            raise ValueError(f"no variant {variant!r} was timed: there is {', '.join(self._rounds)}")
        return self._rounds[variant]

    @functools.cached_property
    def median(self) -> pd.Series:
        """The median of the rounds of each variant, in seconds."""
        return self.quantile(0.5)

    def quantile(self, q: float) -> pd.Series:
        """The q-quantile of the rounds of each variant, linear between order statistics, in seconds."""
        found = {name: float(np.quantile(taken, q)) for name, taken in self._rounds.items()}
        return pd.Series(found, name="seconds", dtype=float).rename_axis("variant")

    def compare(self, a: str, b: str, floor: float = 1.0) -> Verdict:
        """Compare two variants round by round, by the rule of `labkit.timing`; `floor` is what `noise_floor` returned.

        Raises:
            ValueError: one of them was not timed, they have different numbers of rounds or one only, a time of 0 is to
                be divided by, or the floor is below 1.
        """
        x, y = self[a], self[b]
        if len(x) != len(y):
            raise ValueError(f"{a!r} has {len(x)} rounds and {b!r} has {len(y)}: pairs need the same rounds")
        if len(x) == 1:
            raise ValueError(f"{a!r} and {b!r} were timed in one round: one round has no spread")
        for name, taken in ((a, x), (b, y)):
            if 0 in taken:
                at = list(taken).index(0)
                raise ValueError(f"sample {at} of {name!r} is 0 s: no ratio can be made of it")
        if not (math.isfinite(floor) and floor >= 1):
            raise ValueError(f"a noise floor is a ratio of at least 1, got {floor!r}")
        ratios = x / y
        ratio, interval = float(np.median(ratios)), wider_interval(ratios)
        return Verdict(a, b, ratio, *interval, len(x), floor=floor, evidence=self.evidence)

    def noise_floor(self, once: str, again: str) -> float:
        """How far the same thing, timed under two names in the same rounds, strayed from itself: a ratio from 1 up.

        Where even A against A is told apart, the farther end of its interval is the floor: nothing nearer can be
        trusted.

        >>> Times({"A": [0.010, 0.011], "A again": [0.010, 0.011]}).noise_floor("A", "A again")
        1.0
        """
        control = self.compare(once, again)
        strayed = [control.ratio] if control.outcome == "cannot tell" else [control.low, control.high]
        return max(max(ratio, 1 / ratio) for ratio in strayed)

    def __repr__(self) -> str:
        low, high = self.quantile(0.1) * 1e3, self.quantile(0.9) * 1e3
        return "\n".join(
            f"{name}: {self.median[name] * 1e3:.3g} ms ({low[name]:.3g}-{high[name]:.3g}, n={len(taken)})"
            for name, taken in self._rounds.items()
        )


def _slowest(name: str, rows: pd.DataFrame) -> np.ndarray:
    """The slowest rank's seconds, round by round; each rank's are checked before the maximum could hide a NaN."""
    ranks = rows.groupby("rank")["seconds"] if "rank" in rows else [(None, rows["seconds"])]
    by_rank = {rank: taken.to_numpy(float) for rank, taken in ranks}
    first, expected = next(iter(by_rank.items()))
    for rank, taken in by_rank.items():
        if len(taken) != len(expected):
            here = f"rank {first} has {len(expected)} rounds and rank {rank} has {len(taken)}"
            raise ValueError(f"variant {name!r}: {here}")
        for i in np.flatnonzero(~(np.isfinite(taken) & (taken >= 0))):
            where = name if rank is None else f"{name}, rank {rank}"
            raise ValueError(
                f"sample {i} of {where!r} is {taken[i]:g}: a time is a finite number of seconds, not negative"
            )
    return np.max(list(by_rank.values()), axis=0)


def check_rounds(rounds: Any, least: int = 2) -> int:
    """Return a number of rounds, or raise ValueError where it is no whole number of at least `least`.

    >>> check_rounds(0)
    Traceback (most recent call last):
    ValueError: rounds must be a whole number of at least 2, got 0
    """
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < least:
        raise ValueError(f"rounds must be a whole number of at least {least}, got {rounds!r}")
    return rounds


def interleave(
    variants: Mapping[str, Callable[[], Any]],
    rounds: int = 20,
    warmup: int = 2,
    barrier: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Time every variant once a round, in turn, with the garbage collector off and a barrier before each.

    The order is drawn anew in each round, the same on every rank, so that no variant always follows the same one. On
    ranks, call it on every rank with the same arguments and a barrier of the group; `Times.merge` puts their times
    together.

    Args:
        variants: callables by name; each runs one complete piece of work.
        rounds: samples of each variant.
        warmup: calls of each variant before the first round.
        barrier: called before each sample.
        clock: returns seconds.

    Raises:
        ValueError: there are no variants, or fewer than one round.

    >>> interleave({"a": lambda: None, "b": lambda: None}, rounds=3).variants
    ['a', 'b']
    """
    names = list(variants)
    if not names:
        raise ValueError("nothing to time: give at least one variant")
    check_rounds(rounds, 1)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(warmup):
        for name in names:
            variants[name]()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            # a rotation would leave each variant its predecessor, and with it that one's caches
            for name in random.Random(i).sample(names, len(names)):
                if barrier is not None:
                    barrier()
                began = clock()
                variants[name]()
                seconds[name].append(clock() - began)
    finally:
        if collecting:
            gc.enable()
    return Times(seconds)
