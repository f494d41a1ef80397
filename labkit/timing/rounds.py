"""Taking the samples: variants in turn, round by round, and work that a call only starts in two stages."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.timing.verdicts import Measurement

__all__ = ["Lap", "check_rounds", "interleave", "laps"]


def check_rounds(rounds: Any, least: int = 2) -> int:
    """The number of rounds, where it is one. Raises ValueError for what is no whole number of at least `least`.

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
) -> dict[str, Measurement]:
    """Time every variant once a round, in turn, with the garbage collector off and a barrier before each.

    Each callable runs one complete piece of work. The order is drawn anew each round, the same on every rank, so that
    no variant always follows the same one. Returns seconds, one sample a round. On ranks, call it on every
    rank with the same arguments and a barrier of the group.

    Raises ValueError for no variants or fewer than one round.

    >>> list(interleave({"a": lambda: None, "b": lambda: None}, rounds=3))
    ['a', 'b']
    """

    def once(name: str) -> tuple[float]:
        began = clock()
        variants[name]()
        return (clock() - began,)

    taken = _rounds(list(variants), once, lambda name: variants[name](), rounds, warmup, barrier)
    return {
        name: Measurement(name, tuple(sample for (sample,) in samples)) for name, samples in taken.items()
    }


@dataclass(frozen=True)
class Lap:
    """One variant in two stages: seconds until its call came back, and until what it started was done."""

    returned: Measurement
    done: Measurement


def laps(
    variants: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]],
    rounds: int = 20,
    warmup: int = 2,
    calls: int = 1,
    barrier: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Lap]:
    """As `interleave`, for work that a call only starts: a variant is (start, finish), and finish gets start's value.

    calls: how often a sample repeats the pair; it is then the mean of one. Returns seconds, both counted from the
    beginning of start. Raises ValueError for no variants, fewer than one round or fewer than one call.

    >>> found = laps({"a": (lambda: 3, lambda value: value + 1)}, rounds=2)
    >>> found["a"].returned.samples[0] <= found["a"].done.samples[0]
    True
    """
    if calls < 1:
        raise ValueError(f"calls must be at least 1, got {calls}")

    def once(name: str) -> tuple[float, float]:
        start, finish = variants[name]
        back = end = 0.0
        for _ in range(calls):
            began = clock()
            value = start()
            there = clock()
            value = finish(value)
            end += clock() - began
            back += there - began
            del value  # what a call returned must not live on into the next one's time
        return back / calls, end / calls

    def warm(name: str) -> None:
        start, finish = variants[name]
        finish(start())

    taken = _rounds(list(variants), once, warm, rounds, warmup, barrier)
    return {
        name: Lap(*(Measurement(name, part) for part in zip(*samples, strict=True)))
        for name, samples in taken.items()
    }


def _rounds(
    names: Sequence[str],
    once: Callable[[str], tuple[float, ...]],
    warm: Callable[[str], Any],
    rounds: int,
    warmup: int,
    barrier: Callable[[], Any] | None,
) -> dict[str, list[tuple[float, ...]]]:
    """The rounds themselves: the order is drawn anew, the collector is off, a barrier stands before each sample."""
    if not names:
        raise ValueError("nothing to time: give at least one variant")
    check_rounds(rounds, 1)
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for _ in range(warmup):
        for name in names:
            warm(name)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            # a rotation would leave each variant its predecessor, and with it that one's caches
            for name in random.Random(i).sample(names, len(names)):
                if barrier is not None:
                    barrier()
                samples[name].append(once(name))
    finally:
        if collecting:
            gc.enable()
    return samples
