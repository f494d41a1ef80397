"""A record of several ranks as one trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

The format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Used of it
are complete events (ph X), instants (i), metadata (M), and flows (s, t, f), whose points lie inside of the slices that
they connect.
"""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd

from labkit.records.rank_difference import break_times
from labkit.trace.events import collective_op, point_to_point

__all__ = ["chrome_trace"]

INSIDE_US = 1.0  # a flow's point lies so far behind the beginning of its slice, or in its middle
LEFT = "{} collectives have no arrow: their group is unknown, or its ranks differ"
NO_CLOCK = "no arrows: these ranks share no clock"


def chrome_trace(
    tables: dict[str, pd.DataFrame], label: str = "", notes: tuple[str, ...] = (), one_clock: bool = True
) -> dict[str, Any]:
    """Convert a record's tables.

    Args:
        tables: Of a `Record`.
        label: Its run label.
        notes: What a reader has to know about gaps.
        one_clock: Whether the times of all ranks can be compared.

    Returns:
        The object to write as JSON. Each rank is a process, each thread and stream of it a thread. `cat` is the kind of
        an event, `args` its step or forward (-1 outside of the marked ones), place, compile id and group. Times are
        microseconds since the record began.
    """
    events = tables["events"].assign(start=tables["events"]["start_us"], end=tables["events"]["end_us"])
    events = events.sort_values(["rank", "start", "end"], ascending=[True, True, False], kind="stable")
    written: list[dict[str, Any]] = []
    for rank, of_rank in events.groupby("rank"):
        written.append(_named("process_name", rank, 0, f"rank {rank}"))
        names = sorted(of_rank["thread"].unique(), key=lambda name: (name != "main", name))
        threads = [(name, rows) for name in names for rows in _nested(of_rank[of_rank["thread"] == name])]
        for tid, (name, rows) in enumerate(threads):
            written.append(_named("thread_name", rank, tid, name))
            events.loc[rows, "tid"] = tid
    written += [_slice(row) for row in events.itertuples()]
    for row in break_times(events, tables["breaks"]).itertuples():
        args = {"place": row.place, "region": row.name, "step": row.forward, "compile id": row.compile_id}
        at = {"pid": row.rank, "tid": int(row.tid), "ts": _us(row.at)}
        written.append({"ph": "i", "s": "t", "cat": "break", "name": row.reason, **at, "args": args})
    arrows, without = _flows(events) if one_clock else ([], NO_CLOCK)
    about = {"label": label, "notes": [*notes, *([without] if without else [])]}
    return {"traceEvents": [*written, *arrows], "displayTimeUnit": "ms", "otherData": about}


def _named(what: str, rank: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": int(rank), "tid": tid, "args": {"name": name}}


def _us(time: float) -> float:
    return round(float(time), 3)  # nanoseconds, as they were measured


def _slice(row: Any) -> dict[str, Any]:
    told = {"step": row.forward, "place": row.place, "compile id": row.compile_id, "shapes": row.shapes}
    args = {name: value for name, value in (told | {"group": row.group}).items() if value != ""}
    start = _us(row.start)
    at = {"pid": int(row.rank), "tid": int(row.tid), "ts": start, "dur": _us(_us(row.end) - start)}
    return {"ph": "X", "cat": row.kind, "name": row.name, **at, "args": args}


def _nested(rows: pd.DataFrame) -> list[list[Any]]:
    """Spread a thread's events, in the order of start, over as few lanes as let each lie in or behind the others."""
    lanes: list[tuple[list[float], list[Any]]] = []
    for index, start, end in zip(rows.index, rows["start"].map(_us), rows["end"].map(_us), strict=True):
        for open_, _ in lanes:
            while open_ and open_[-1] <= start:
                open_.pop()
        lane = next((lane for lane in lanes if not lane[0] or end <= lane[0][-1]), None)
        if lane is None:
            lane = ([], [])
            lanes.append(lane)
        lane[0].append(end)
        lane[1].append(index)
    return [kept for _, kept in lanes]


def _flows(events: pd.DataFrame) -> tuple[list[dict[str, Any]], str]:
    """Connect the n-th collective of a group in a step across ranks, from the first to call it to the last.

    A group's calls in a step are connected up to the first that differs between its members. A step with a collective
    of an unknown group has no arrows, since calls could be counted wrongly.

    Returns:
        The events, and what was left out.
    """
    calls = events[(events["kind"] == "collective") & (events["forward"] >= 0)]
    calls = calls[~calls["name"].map(point_to_point).astype(bool)]
    ranks = set(events["rank"])
    written: list[dict[str, Any]] = []
    left = number = 0
    for _, step in calls.groupby("forward") if len(ranks) > 1 else ():
        if not step["group"].str.contains(": ").all():
            left += len(step)
            continue
        for group, mine in step.groupby("group"):
            members = ranks & set(map(int, str(group).partition(": ")[2].split(", ")))
            by_rank = [list(rows.itertuples()) for _, rows in mine.groupby("rank")]
            together = list(zip(*by_rank, strict=False)) if len(by_rank) == len(members) > 1 else []
            connected = list(itertools.takewhile(_same, together))
            for call in connected:
                number += 1
                written += _arrow(call, number, f"{collective_op(call[0].name)}, group {group}")
            left += (sum(map(len, by_rank)) - len(connected) * len(by_rank)) * (len(members) > 1)
    return written, LEFT.format(left) if left else ""


def _same(call: Any) -> bool:
    return len({collective_op(row.name) for row in call}) == 1


def _arrow(call: Any, number: int, name: str) -> list[dict[str, Any]]:
    points = sorted(
        (row.start + min((row.end - row.start) / 2, INSIDE_US), int(row.rank), int(row.tid)) for row in call
    )
    phases = ["s", *["t"] * (len(points) - 2), "f"]
    return [
        {
            "ph": phase,
            "id": number,
            "cat": "same collective",
            "name": name,
            "pid": rank,
            "tid": tid,
            "ts": _us(at),
        }
        | ({"bp": "e"} if phase == "f" else {})
        for phase, (at, rank, tid) in zip(phases, points, strict=True)
    ]
