"""The process group of each collective in a record: torch's profiler keeps none, its flight recorder does."""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence

import torch.distributed as dist

from labkit import torch_compat
from labkit.trace import Event

__all__ = ["group_names"]


def group_names(events: Sequence[Event]) -> list[str]:
    """Name the process group of each collective.

    A collective belongs to the group that the flight recorder noted within its range. The flight recorder keeps the
    last calls only (256 on ranks of labkit) and none of a backend in Python; where the program has one group, it is
    that one.

    Args:
        events: Of a record that has just ended; the groups are still up.

    Returns:
        For each event the group's name and its members, such as '3: 0, 1'; '' for what is no collective, and where
        the group is not known.
    """
    found = [""] * len(events)
    calls = [i for i, event in enumerate(events) if event.kind == "collective"]
    if not calls or not dist.is_initialized():
        return found
    named = {
        group.group_name: f"{group.group_name}: {', '.join(map(str, dist.get_process_group_ranks(group)))}"
        for group in torch_compat.process_groups()
    }
    if len(named) == 1:
        for i in calls:
            found[i] = next(iter(named.values()))
        return found
    epoch = time.time_ns() - time.monotonic_ns()
    noted = [(e["time_created_ns"] - epoch, e["process_group"][0]) for e in torch_compat.flight_record(False)]
    times = [at for at, _ in noted]
    for i in calls:
        first = bisect.bisect_left(times, events[i].start)
        if first < len(noted) and times[first] <= events[i].end:
            found[i] = named.get(noted[first][1], "")
    return found
