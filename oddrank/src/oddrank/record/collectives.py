"""Which collectives ran: of a compiled graph or eager, over which group, called from which line."""

from __future__ import annotations

import bisect
import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oddrank import torch_names
from oddrank.places import is_library
from oddrank.record.nodes import COLLECTIVE
from oddrank.record.payloads import resumed
from oddrank.record.tables import Collective, Compile, Mark, Table
from oddrank.record.timeline import Event, collective_op

__all__ = ["Calls", "collectives_of"]

Spot = tuple[str, int, str, bool]  # file, line, function, exact
UNKNOWN: Spot = ("", 0, "", True)
SLACK_NS = 20_000  # between the profiler's clock and the flight recorder's
# as the flight recorder writes them, where that is not torch's name in small letters
DTYPES = {
    **{"Float": "float32", "Double": "float64", "Half": "float16", "Byte": "uint8", "Char": "int8"},
    **{"Short": "int16", "Int": "int32", "Long": "int64"},
}


@dataclass(frozen=True)
class Call:
    """What torch knows of the call of a collective, but for its name.

    Args:
        at: When it was called, in ns of `time.monotonic_ns()`.
        group: The group's name and members, as in `Collective`.
        spot: The program's line.
        shapes, dtype: Of its input.
    """

    at: int = 0
    group: str = ""
    spot: Spot = UNKNOWN
    shapes: str = ""
    dtype: str = ""


class Calls:
    """The calls that torch's flight recorder holds, the last ones of groups whose backend is written in C++.

    It is read when a call is first asked for: most records have no collective.
    """

    @functools.cached_property
    def _groups(self) -> dict[str, str]:
        members = torch_names.group_members()
        return {name: f"{name}: {', '.join(map(str, ranks))}" for name, ranks in members.items()}

    @functools.cached_property
    def _calls(self) -> list[Call]:
        entries = torch_names.flight_record() if self._groups else []
        epoch = _epoch() if entries else 0
        return [_call(entry, epoch, self._groups) for entry in entries]

    @functools.cached_property
    def _times(self) -> list[int]:
        return [call.at for call in self._calls]

    def between(self, start: int, end: int) -> Call:
        """The call made between two times, in ns of `time.monotonic_ns()`. Without a record of it, only the group is
        known, where the program has one."""
        first = bisect.bisect_left(self._times, start)
        near = [i for i in (first - 1, first) if 0 <= i < len(self._times)]
        near.sort(key=lambda i: max(start - self._times[i], self._times[i] - end))
        if near and start - SLACK_NS <= self._times[near[0]] <= end + SLACK_NS:
            return self._calls[near[0]]
        return Call(group=next(iter(self._groups.values()))) if len(self._groups) == 1 else Call()


def _epoch() -> int:
    """By how many ns the system's clock, which the flight recorder has, is ahead of the monotonic one.

    The quickest of a few readings counts: a busy machine sets a process aside between the two clocks, for longer than
    `SLACK_NS`, and then no call would be found.
    """
    readings = []
    for _ in range(8):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, now - (before + after) // 2))
    return min(readings)[1]


def _call(entry: Mapping[str, Any], epoch: int, groups: Mapping[str, str]) -> Call:
    frames = entry.get("frames") or ()  # the innermost first
    mine = next((f for f in frames if not is_library(str(f.get("filename")))), None)
    spot = (
        (str(mine["filename"]), int(mine["line"]), resumed(str(mine["name"]))[0], True) if mine else UNKNOWN
    )
    shapes = ", ".join("x".join(map(str, size)) for size in entry.get("input_sizes") or ())
    dtypes = [DTYPES.get(name, name.lower()) for name in entry.get("input_dtypes") or ()]
    group = groups.get(entry["process_group"][0], "")
    return Call(entry["time_created_ns"] - epoch, group, spot, shapes, ", ".join(dict.fromkeys(dtypes)))


def collectives_of(
    events: Sequence[Event], compiles: Mapping[str, Compile], marks: Iterable[Mark], calls: Calls, rank: int
) -> Table[Collective]:
    """Add up the collectives of the marked forwards, and count in each compile how often its break stood at one.

    Each event of a collective gets its `spot`.

    Args:
        events: The timeline, with the compiles' ids.
        compiles: By id; `at_collective` of those that broke is set.
        marks: Facts at lines, for the lines of collectives in graphs and of breaks.
        calls: What torch knows of the calls.
        rank: The rank.
    """
    in_graph: dict[tuple[str, str], list[Mark]] = {}  # by compile and stage
    breaks: dict[str, Mark] = {}
    for mark in marks:
        if mark.kind == "op" and COLLECTIVE.search(mark.name):
            in_graph.setdefault((mark.compile, mark.stage), []).append(mark)
        elif mark.kind == "break":
            breaks[mark.compile] = mark
    found: dict[tuple[Any, ...], Collective] = {}
    for region, ran in _by_region(events).items():
        row = compiles.get(events[region].compile_id) if region >= 0 else None
        stages = [in_graph.get((row.id, stage), []) for stage in ("dynamo", "forward")] if row else []
        own = _of_graph(ran, max(map(len, stages), default=0))
        lines = next((marks for marks in stages if len(marks) == len(own)), [])
        for i, event in enumerate(ran):
            call = calls.between(event.start, event.end)
            spot = call.spot
            if i in own and lines:
                mark = lines[own.index(i)]
                spot = (mark.file, mark.line, mark.func, mark.exact)
            elif spot == UNKNOWN and i not in own and row and row.id in breaks:
                # the eager call that the region broke for, or one right after it
                spot = (*breaks[row.id].cause, False)
            event.spot = spot[:3]
            of = row.id if row and i in own else ""
            shapes = call.shapes if call.at else event.shapes
            key = (of, collective_op(event.name), call.group, shapes, call.dtype, *spot, event.compiled)
            if key in found:
                found[key].runs += 1
            else:
                found[key] = Collective(rank, *key)
        if row is not None and row.broke and len(ran) > len(own):
            row.at_collective += 1
    return Table(Collective, found.values())


def _by_region(events: Sequence[Event]) -> dict[int, list[Event]]:
    """The collectives of marked forwards by the region they ran in; -1: none."""
    found: dict[int, list[Event]] = {}
    for event in events:
        if event.kind != "collective" or event.forward < 0:
            continue
        at = event.parent
        while at >= 0 and events[at].kind != "region":
            event.compiled = event.compiled or events[at].kind == "compiled"
            at = events[at].parent
        found.setdefault(at, []).append(event)
    return found


def _of_graph(ran: Sequence[Event], most: int) -> list[int]:
    """Which of a region's collectives are its graph's own.

    Only Inductor marks the run of a graph. A backend that runs it operator by operator shows them first, and then what
    the frame runs eagerly.

    Args:
        ran: The collectives of a region.
        most: How many the graph has.
    """
    own = [i for i, event in enumerate(ran) if event.compiled]
    if not own:
        own = [i for i, event in enumerate(ran) if "functional" in event.name][:most]
        for i in own:
            ran[i].compiled = True
    return own
