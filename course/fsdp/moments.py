"""When the weights of a unit are on their way, whole, and reduced: read off the ranges that FSDP marks in a profile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pandas as pd

__all__ = ["COLUMNS", "ROOT", "spans"]

COLUMNS = ["route", "unit", "what", "start", "end"]
ROOT = "root"
RANGE = re.compile(r"FSDP::(\w+)(?: \((.*)\))?$")
FREED = ("post_forward", "post_backward_reshard", "reshard")
Range = tuple[str, float, float]


def spans(ranges: Mapping[str, Iterable[Range]]) -> pd.DataFrame:
    """Turn marked ranges into spans of three kinds.

    'gathering' is from the launch of an all-gather until its result was copied out, 'whole' until the weights are
    freed, and 'reducing' from the launch of a reduce-scatter until somebody has waited for it. A unit that is not
    gathered again before its backward was not freed by its forward.

    Args:
        ranges: by route, a list of (name, start, end) in microseconds of one step on one rank; names as torch's FSDP
            marks them, such as 'FSDP::all_gather (blocks.0)', with the root unit unnamed or called 'root'. Those that
            a small FSDP of one's own adds: 'FSDP::reshard (...)' where it frees, 'FSDP::reduced (...)' where it waits.

    Returns:
        A table of route, unit, what, start and end in milliseconds from the start of the first range of a route.

    Raises:
        ValueError: a route has no all-gather.

    >>> marked = [("FSDP::all_gather", 0, 10), ("FSDP::all_gather_copy_out", 20, 30), ("FSDP::post_forward", 50, 60)]
    >>> spans({"mine": marked})[["unit", "what", "start", "end"]].values.tolist()
    [['root', 'gathering', 0.0, 0.03], ['root', 'whole', 0.03, 0.06]]
    """
    rows = []
    for route, marked in ranges.items():
        units: dict[str, list[tuple[float, float, str]]] = {}
        for name, start, end in marked:
            if found := RANGE.fullmatch(name):
                units.setdefault(found[2] or ROOT, []).append((start, end, found[1]))
        zero = min((start for events in units.values() for start, *_ in events), default=0.0)
        mine = [
            (route, unit, what, (start - zero) / 1e3, (end - zero) / 1e3)
            for unit, events in units.items()
            for what, start, end in _of(sorted(events))
        ]
        if not any(what == "gathering" for _, _, what, *_ in mine):
            raise ValueError(f"no all-gather is marked in the step of {route!r}")
        rows += mine
    return pd.DataFrame(rows, columns=COLUMNS)


def _of(events: list[tuple[float, float, str]]) -> list[tuple[str, float, float]]:
    """The spans of one unit, out of its events in order."""
    found: list[tuple[str, float, float]] = []
    launched = whole = None
    for i, (start, end, what) in enumerate(events):
        if what == "all_gather":
            launched = start
        elif what == "all_gather_copy_out" and launched is not None:
            found.append(("gathering", launched, end))
            launched, whole = None, end
        elif what in FREED and whole is not None:
            later = [name for _, _, name in events[i + 1 :]]
            used_again = next((n for n in later if n in ("all_gather", "post_backward_reshard")), "")
            if what == "post_forward" and used_again == "post_backward_reshard":
                continue  # kept for backward
            found.append(("whole", whole, end))
            whole = None
        elif what == "post_backward_reduce":
            done = next((stop for _, stop, name in events[i + 1 :] if name == "reduced"), end)
            found.append(("reducing", start, done))
    return found
