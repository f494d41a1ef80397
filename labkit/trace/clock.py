"""The one clock of all times in a record: `time.monotonic_ns()`, which nobody sets and a machine's processes share."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

__all__ = ["shared_clock", "to_monotonic"]

_SET_NS = 5_000_000  # by this much two clocks differ over a profile only where one of them was set
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def shared_clock() -> str:
    """A name for this machine's monotonic clock: equal in two processes whose times can be compared.

    >>> shared_clock() == shared_clock() != ""
    True
    """
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return platform.node()


def to_monotonic(marks: dict[str, int], ticks: dict[str, tuple[int, int]]) -> Callable[[int], int]:
    """What brings a time of a profile to the monotonic clock, from marks at both ends of it.

    `marks` has the middle of each in the profile, `ticks` the monotonic clock before and after it.

    Kineto compares its counter with the system's clock when a profile begins and when it ends, and takes it as even in
    between (`ApproximateClockToUnixTimeConverter` in c10/util/ApproximateClock.cpp). So a clock that was set within a
    profile stretches all of its times, which is undone here; where it was set back by more than the profile's length,
    times run backwards, and only where things began can be told.

    >>> second = 1_000_000_000
    >>> at = to_monotonic({"begin": 7, "end": 7 + 8 * second}, {"begin": (90, 90), "end": (90 + 4 * second,) * 2})
    >>> (at(7 + 2 * second) - 90) / second
    1.0
    """
    if len(marks) < len(ticks) or not ticks:
        return lambda time: time  # another profiler took away what was recorded
    names = list(ticks)
    first, last = (
        min(part, key=lambda name: ticks[name][1] - ticks[name][0])
        for part in (names[: len(names) // 2], names[len(names) // 2 :])
    )
    theirs, ours = marks[first], sum(ticks[first]) // 2
    took_theirs, took_ours = marks[last] - theirs, sum(ticks[last]) // 2 - ours
    if abs(took_theirs - took_ours) < _SET_NS or not took_theirs:
        return lambda time: time + ours - theirs
    return lambda time: ours + (time - theirs) * took_ours // took_theirs
