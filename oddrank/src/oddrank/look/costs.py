"""What breaks and compiles cost: time outside of compiled regions around a break, and seconds of compiling."""

from __future__ import annotations

from collections.abc import Iterable

from oddrank.look.breaks import Break, breaks_of
from oddrank.record import Tables, break_times

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


def compiling(record: Tables, rank: int) -> list[Span]:
    """Return when a rank compiled, in us, on any thread."""
    return [(one.start_us, one.end_us) for one in record.ranges if (one.rank, one.kind) == (rank, "compile")]


def durations(record: Tables) -> dict[tuple[int, int], float]:
    """Return the duration of each recorded step without compiling, in ms, by rank and step."""
    compiled = {rank: compiling(record, rank) for rank in record.ranks}
    return {
        (rank, number): union([span], compiled[rank]) / 1e3 for (rank, number), span in _steps(record).items()
    }


def _steps(record: Tables) -> dict[tuple[int, int], Span]:
    """When each rank's steps began and ended."""
    found: dict[tuple[int, int], Span] = {}
    for one in record.segments:
        if one.forward >= 0:
            first, last = found.get((one.rank, one.forward), (one.start_us, one.end_us))
            found[one.rank, one.forward] = min(first, one.start_us), max(last, one.end_us)
    return dict(sorted(found.items()))


def around_breaks(
    record: Tables,
) -> tuple[list[tuple[Break, int]], dict[tuple[str, str], dict[int, float]]]:
    """Measure the time outside of compiled regions around each executed break.

    It goes from the end of a region's compiled code to the next compiled code on the main thread, or to the end of the
    step. Times that overlap count once; compiling does not count.

    Returns:
        The breaks with their executions; and ms per step by rank, for each reason and place. No ms where operators were
        not recorded.
    """
    executed = [(one, one.executed) for one in breaks_of(record) if one.executed]
    ends = {step: end for step, (_, end) in _steps(record).items()}
    if not ends:
        return executed, {}
    # backends other than AOTAutograd's have no range of compiled code
    kind = "compiled" if any(one.kind == "compiled" for one in record.ranges) else "region"
    begins: dict[tuple[int, int], list[float]] = {}
    for one in record.ranges:
        if one.kind == kind and one.thread == "main":
            begins.setdefault((one.rank, one.forward), []).append(one.start_us)
    met = {(one.rank, one.compile): (one.reason, one.place) for one in breaks_of(record)}
    spans: dict[tuple[tuple[str, str], int, int], list[Span]] = {}
    for region, mark, at in break_times(record):
        step = region.rank, region.forward
        if step in ends:
            until = min((begin for begin in begins.get(step, ()) if begin > at), default=ends[step])
            spans.setdefault((met[mark.rank, mark.compile], *step), []).append((at, until))
    compiled = {rank: compiling(record, rank) for rank in record.ranks}
    steps = len({number for _, number in ends})
    found: dict[tuple[str, str], dict[int, float]] = {}
    for (key, rank, _), mine in spans.items():
        each = found.setdefault(key, {})
        each[rank] = each.get(rank, 0.0) + union(mine, compiled[rank]) / 1e3 / steps
    return executed, found
