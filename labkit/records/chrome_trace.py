"""A record of several ranks as one trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

The format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Used of it are
complete events (ph X), instants (i), metadata (M), and flows (s, t, f), whose points lie inside of the slices that they
connect.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.records.executed import break_times
from labkit.trace.events import collective_op, point_to_point

__all__ = ["chrome_trace"]

INSIDE_US = 1.0  # a flow's point lies so far behind the beginning of its slice, or in its middle
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
        written += [_named("process_name", rank, 0, f"rank {rank}"), _sorted("process_sort_index", rank, 0, rank)]
        threads = sorted(of_rank["thread"].unique(), key=lambda name: (name != "main", name))
        tid = 0
        ids: dict[Any, int] = {}
        for thread in threads:
            for lane, rows in enumerate(_nested(of_rank[of_rank["thread"] == thread])):
                name = thread if lane == 0 else f"{thread}, overlapping"
                written += [_named("thread_name", rank, tid, name), _sorted("thread_sort_index", rank, tid, tid)]
                ids |= dict.fromkeys(rows, tid)
                tid += 1
        for row in of_rank.itertuples():
            written.append(_slice(row, ids[row.Index]))
        events.loc[of_rank.index, "tid"] = pd.Series(ids)
    for row in break_times(events, tables["breaks"]).itertuples():
        args = {"place": row.place, "region": row.name, "step": row.forward, "compile id": row.compile_id}
        at = {"pid": row.rank, "tid": int(row.tid), "ts": _us(row.at)}
        written.append({"ph": "i", "s": "t", "cat": "break", "name": row.reason, **at, "args": args})
    arrows, without = _flows(events) if one_clock else ([], NO_CLOCK)
    about = {"label": label, "notes": [*notes, *([without] if without else [])]}
    return {"traceEvents": [*written, *arrows], "displayTimeUnit": "ms", "otherData": about}


def _named(what: str, rank: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": int(rank), "tid": tid, "args": {"name": name}}


def _sorted(what: str, rank: int, tid: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": int(rank), "tid": tid, "args": {"sort_index": int(index)}}


def _us(time: float) -> float:
    return round(float(time), 3)  # nanoseconds, as they were measured


def _slice(row: Any, tid: int) -> dict[str, Any]:
    told = {"step": row.forward, "place": row.place, "compile id": row.compile_id, "shapes": row.shapes}
    args = {name: value for name, value in (told | {"group": row.group}).items() if value != ""}
    start = _us(row.start)
    at = {"pid": int(row.rank), "tid": tid, "ts": start, "dur": _us(_us(row.end) - start)}
    return {"ph": "X", "cat": row.kind, "name": row.name, **at, "args": args}


def _nested(rows: pd.DataFrame) -> list[list[Any]]:
    """Spread a thread's events, in the order of start, over as few lanes as let each lie in or behind the others."""
    lanes: list[tuple[list[float], list[Any]]] = []
    for index, start, end in zip(rows.index, rows["start"].map(_us), rows["end"].map(_us), strict=True):
        for open_, kept in lanes:
            while open_ and open_[-1] <= start:
                open_.pop()
            if not open_ or end <= open_[-1]:
                break
        else:
            open_, kept = [], []
            lanes.append((open_, kept))
        open_.append(end)
        kept.append(index)
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
    for _, step in calls.groupby("forward"):
        if not step["group"].str.contains(": ").all():
            left += len(step)
            continue
        for group, mine in step.groupby("group"):
            members = ranks & set(map(int, str(group).partition(": ")[2].split(", ")))
            by_rank = [list(rows.itertuples()) for _, rows in mine.groupby("rank")]
            together = list(zip(*by_rank, strict=False)) if len(by_rank) == len(members) > 1 else []
            same = 0
            for same, call in enumerate([*together, ()]):
                names = {collective_op(row.name) for row in call}
                if len(names) != 1:
                    break
                number += 1
                written += _arrow(call, number, f"{names.pop()}, group {group}")
            left += sum(map(len, by_rank)) - same * len(by_rank) if len(members) > 1 else 0
    return written, f"{left} collectives have no arrow: their group is unknown, or its ranks differ" if left else ""


def _arrow(call: Any, number: int, name: str) -> list[dict[str, Any]]:
    points = sorted(
        (row.start + min((row.end - row.start) / 2, INSIDE_US), int(row.rank), int(row.tid)) for row in call
    )
    phases = ["s", *["t"] * (len(points) - 2), "f"]
    return [
        {"ph": phase, "id": number, "cat": "same collective", "name": name, "pid": rank, "tid": tid, "ts": _us(at)}
        | ({"bp": "e"} if phase == "f" else {})
        for phase, (at, rank, tid) in zip(phases, points, strict=True)
    ]
