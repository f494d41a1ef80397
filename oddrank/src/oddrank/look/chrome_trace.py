"""What ranks ran as one trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

The format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Used of it
are complete events (ph X), instants (i), metadata (M), and flows (s, t, f), whose points lie inside of the slices that
they connect.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oddrank.counted import counted
from oddrank.files import Unsaved, write
from oddrank.places import place
from oddrank.record import Compile, Range, Tables, break_times
from oddrank.record.timeline import collective_op, point_to_point

__all__ = ["chrome_trace", "save"]

INSIDE_US = 1.0  # a flow's point lies so far behind the beginning of its slice, or in its middle
LEFT = "collectives have no arrow"
UNKNOWN = "the group is unknown, or its ranks differ"
NO_CLOCK = "no arrows: these ranks share no clock"
Track = tuple[int, int]  # rank, and number of the thread


def save(record: Tables, path: str | os.PathLike[str]) -> Path:
    """Write what ran as one trace: https://ui.perfetto.dev and chrome://tracing open it.

    Args:
        record: Of one rank or more.
        path: Of the file. What was there is replaced.

    Returns:
        The path.

    Raises:
        ValueError: The record is still open.
        Unsaved: The file cannot be written.
    """
    body = json.dumps(chrome_trace(record), separators=(",", ":"), allow_nan=False)
    try:
        return write(path, body.encode())
    except OSError as error:
        raise Unsaved(f"cannot write {path}: {error.strerror or error}") from error


def chrome_trace(record: Tables) -> dict[str, Any]:
    """Convert a record.

    Returns:
        The object to write as JSON. Each rank is a process, each thread and stream of it a thread. `cat` is the kind of
        an event, `args` its step or forward (-1 outside of the marked ones), place, compile id and group. Times are
        microseconds since the record began. Arrows connect the same collective across ranks that share a clock.
    """
    ranges = sorted(record.ranges, key=lambda one: (one.rank, one.start_us, -one.end_us))
    compiles = {(row.rank, row.id): row for row in record.compiles}
    tracks: dict[int, Track] = {}  # of a range, by its id()
    written: list[dict[str, Any]] = []
    for rank, of_rank in itertools.groupby(ranges, key=lambda one: one.rank):
        written.append(_named("process_name", (rank, 0), f"rank {rank}"))
        by_thread: dict[str, list[Range]] = {}
        for one in of_rank:
            by_thread.setdefault(one.thread, []).append(one)
        names = sorted(by_thread, key=lambda name: (name != "main", name))
        lanes = [(name, lane) for name in names for lane in _nested(by_thread[name])]
        for tid, (thread, lane) in enumerate(lanes):
            written.append(_named("thread_name", (rank, tid), thread))
            tracks |= {id(one): (rank, tid) for one in lane}
    written += [_slice(one, tracks[id(one)], compiles.get((one.rank, one.compile))) for one in ranges]
    for region, mark, at in break_times(record):
        row = compiles[region.rank, region.compile]
        args = {"place": place(*mark.cause), "region": row.name, "step": region.forward, "compile id": row.id}
        about = {"cat": "break", "name": mark.name, **_at(tracks[id(region)]), "ts": _us(at), "args": args}
        written.append({"ph": "i", "s": "t", **about})
    one_clock = bool(record.clock) or len({one.rank for one in ranges}) < 2
    arrows, without = _flows(ranges, tracks) if one_clock else ([], NO_CLOCK)
    said = {"label": record.label, "notes": [*record.notes, *([without] if without else [])]}
    return {"traceEvents": [*written, *arrows], "displayTimeUnit": "ms", "otherData": said}


def _at(track: Track) -> dict[str, int]:
    return {"pid": track[0], "tid": track[1]}


def _named(what: str, track: Track, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, **_at(track), "args": {"name": name}}


def _us(time: float) -> float:
    return round(float(time), 3)  # nanoseconds, as they were measured


def _slice(one: Range, track: Track, compile_: Compile | None) -> dict[str, Any]:
    name, at = one.name, place(one.file, one.line or None, one.func)
    if compile_ is not None and one.kind in ("region", "compiled", "compile"):
        name, at = compile_.name, compile_.place
    told = {
        "step": one.forward,
        "place": at,
        "compile id": one.compile,
        "shapes": one.shapes,
        "group": one.group,
    }
    args = {key: value for key, value in told.items() if value != ""}
    start = _us(one.start_us)
    times = {"ts": start, "dur": _us(_us(one.end_us) - start)}
    return {"ph": "X", "cat": one.kind, "name": name, **_at(track), **times, "args": args}


def _nested(ranges: Sequence[Range]) -> list[list[Range]]:
    """Spread a thread's ranges, in the order of start, over as few lanes as let each lie in or behind the others."""
    lanes: list[tuple[list[float], list[Range]]] = []
    for one in ranges:
        start, end = _us(one.start_us), _us(one.end_us)
        for open_, _ in lanes:
            while open_ and open_[-1] <= start:
                open_.pop()
        lane = next((lane for lane in lanes if not lane[0] or end <= lane[0][-1]), None)
        if lane is None:
            lane = ([], [])
            lanes.append(lane)
        lane[0].append(end)
        lane[1].append(one)
    return [kept for _, kept in lanes]


def _flows(ranges: Sequence[Range], tracks: dict[int, Track]) -> tuple[list[dict[str, Any]], str]:
    """Connect the n-th collective of a group in a step across ranks, from the first to call it to the last.

    A group's calls in a step are connected up to the first that differs between its members. A step with a collective
    of an unknown group has no arrows, since calls could be counted wrongly.

    Returns:
        The events, and what was left out.
    """
    ranks = {one.rank for one in ranges}
    steps: dict[int, list[Range]] = {}
    for one in ranges:
        if one.kind == "collective" and one.forward >= 0 and not point_to_point(one.name):
            steps.setdefault(one.forward, []).append(one)
    written: list[dict[str, Any]] = []
    left = number = 0
    for _, step in sorted(steps.items()) if len(ranks) > 1 else ():
        groups: dict[str, dict[int, list[Range]]] = {}
        for one in step:
            groups.setdefault(one.group, {}).setdefault(one.rank, []).append(one)
        if not all(": " in group for group in groups):
            left += len(step)
            continue
        for group, by_rank in sorted(groups.items()):
            members = ranks & set(map(int, group.partition(": ")[2].split(", ")))
            whole = len(by_rank) == len(members) > 1
            together = list(zip(*by_rank.values(), strict=False)) if whole else []
            connected = list(itertools.takewhile(_same, together))
            for call in connected:
                number += 1
                written += _arrow(call, number, f"{collective_op(call[0].name)}, group {group}", tracks)
            calls = sum(map(len, by_rank.values()))
            left += (calls - len(connected) * len(by_rank)) * (len(members) > 1)
    return written, f"{counted(left, LEFT)}: {UNKNOWN}" if left else ""


def _same(call: Sequence[Range]) -> bool:
    return len({collective_op(one.name) for one in call}) == 1


def _arrow(call: Sequence[Range], number: int, name: str, tracks: dict[int, Track]) -> list[dict[str, Any]]:
    inside = ((one, min((one.end_us - one.start_us) / 2, INSIDE_US)) for one in call)
    points = sorted((one.start_us + further, tracks[id(one)]) for one, further in inside)
    phases = ["s", *["t"] * (len(points) - 2), "f"]
    about = {"id": number, "cat": "same collective", "name": name}
    return [
        {"ph": phase, **about, **_at(track), "ts": _us(at)} | ({"bp": "e"} if phase == "f" else {})
        for phase, (at, track) in zip(phases, points, strict=True)
    ]
