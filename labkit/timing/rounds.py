"""Interleaved timing: variants in turn, round by round, also for work that a call only starts."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.timing.verdicts import Measurement

__all__ = ["check_rounds", "interleave"]


def check_rounds(rounds: Any, least: int = 2) -> int:
    """Check a number of rounds.

    Returns:
        The number.

    Raises:
        ValueError: it is no whole number of at least `least`.

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

    The order is drawn anew in each round, the same on every rank, so that no variant always follows the same one. On
    ranks, call it on every rank with the same arguments and a barrier of the group.

    Args:
        variants: callables by name; each runs one complete piece of work.
        rounds: samples of each variant.
        warmup: calls of each variant before the first round.
        barrier: called before each sample.
        clock: returns seconds.

    Returns:
        A measurement for each variant, in seconds, one sample a round.

    Raises:
        ValueError: there are no variants, or fewer than one round.

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


def _rounds(
    names: Sequence[str],
    once: Callable[[str], tuple[float, ...]],
    warm: Callable[[str], Any],
    rounds: int,
    warmup: int,
    barrier: Callable[[], Any] | None,
) -> dict[str, list[tuple[float, ...]]]:
    """Take the samples: the order is drawn anew, the collector is off, and a barrier comes before each sample."""
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
