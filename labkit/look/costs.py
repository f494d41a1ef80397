"""What breaks and compiles cost: time outside of compiled regions around a break, and seconds of compiling."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from labkit.records import Record
from labkit.views.forwards import take_forward

__all__ = ["around_breaks", "durations", "union"]

Span = tuple[float, float]


def union(spans: Iterable[Span], less: Iterable[Span] = ()) -> float:
    """Return the length of what spans cover, each moment once, without what others cover.

    Args:
        spans: Starts and ends, in any order.
        less: What does not count, in the same unit.

    >>> union([(0, 4), (2, 6), (8, 9)]), union([(0, 10)], less=[(2, 5), (4, 6), (9, 12)])
    (7.0, 5.0)
    """
    edges = sorted([*((at, 0, step) for span in spans for at, step in zip(span, (1, -1), strict=True)),
                    *((at, 1, step) for span in less for at, step in zip(span, (1, -1), strict=True))])  # fmt: skip
    depth, total, before = [0, 0], 0.0, 0.0
    for at, which, step in edges:
        if depth[0] > 0 and depth[1] == 0:
            total += at - before
        depth[which] += step
        before = at
    return total


def compiling(record: Record, rank: int) -> list[Span]:
    """Return when a rank compiled, in us, on any thread."""
    events = record.events
    mine = events[(events["rank"] == rank) & (events["kind"] == "compile")]
    return list(zip(mine["start_us"], mine["end_us"], strict=True))


def durations(record: Record) -> dict[tuple[int, int], float]:
    """Return the duration of each recorded step without compiling, in ms, by rank and step."""
    spans = record.segments[record.segments["forward"] >= 0].groupby(["rank", "forward"])
    ends = spans.agg(start=("start_us", "min"), end=("end_us", "max"))
    compiled = {rank: compiling(record, rank) for rank in record.ranks}
    return {
        (rank, number): union([(row.start, row.end)], compiled[rank]) / 1e3
        for (rank, number), row in zip(ends.index, ends.itertuples(), strict=True)
    }


def around_breaks(record: Record) -> tuple[pd.DataFrame, dict[tuple[str, str], dict[int, float]]]:
    """Measure the time outside of compiled regions around each executed break.

    It goes from the end of a region's compiled code to the next compiled code on the main thread, or to the end of the
    step. Times that overlap count once; compiling does not count.

    Returns:
        The executions, with columns rank, reason and place; and ms per step by rank, for each reason and place.
        No ms where operators were not recorded.
    """
    segments, events = record.segments, record.events
    numbers = sorted(set(segments["forward"]) - {-1})
    if not numbers:
        ended = record.breaks[record.breaks["executed"] > 0]
        return ended.loc[ended.index.repeat(ended["executed"])][["rank", "reason", "place"]], {}
    # backends other than AOTAutograd's have no range of compiled code
    kind = "compiled" if (events["kind"] == "compiled").any() else "region"
    begins = events[(events["kind"] == kind) & (events["thread"] == "main")]
    compiled = {rank: compiling(record, rank) for rank in record.ranks}
    rows: list[tuple[int, str, str]] = []
    found: dict[tuple[str, str], dict[int, float]] = {}
    for number in numbers:
        step = take_forward(record, number)
        origin = float(segments[segments["forward"] == number]["start_us"].min())
        names = {reason.number: (reason.reason, reason.place) for reason in step.reasons}
        last = step.segments.groupby("rank")["end"].max()
        spans: dict[tuple[tuple[str, str], int], list[Span]] = {}
        for rank, marks in step.marks.groupby("rank"):
            mine = begins[(begins["rank"] == rank) & (begins["forward"] == number)]
            next_ = sorted((mine["start_us"] - origin) / 1e3)
            for mark in marks.itertuples():
                until = min([at for at in next_ if at > mark.at], default=last[rank])
                spans.setdefault((names[mark.number], int(rank)), []).append((mark.at, until))
                rows.append((int(rank), *names[mark.number]))
        for (key, rank), mine in spans.items():
            less = [((a - origin) / 1e3, (b - origin) / 1e3) for a, b in compiled[rank]]
            each = found.setdefault(key, {})
            each[rank] = each.get(rank, 0.0) + union(mine, less) / len(numbers)
    return pd.DataFrame(rows, columns=["rank", "reason", "place"]), found
