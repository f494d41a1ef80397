"""One recorded forward, prepared for drawing: times in ms, executed breaks, counts, and where ranks first differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from oddrank.places import place
from oddrank.record import Mark, Tables, break_times, first_difference
from oddrank.record.timeline import marked

__all__ = [
    "Forward",
    "Outlined",
    "Reason",
    "collectives",
    "take_forward",
    "typical",
]

NONE = r"wait|_wrap|::send|::recv"  # a message is between two ranks: others of the group have no part in it


@dataclass(frozen=True)
class Reason:
    """A distinct graph break: its place, its reason, and how often each rank executed it in this forward.

    Args:
        number: from 1; 0 for a frame that was given up, which leaves no region that could break.
        reason: why compilation broke.
        place: where, as `file:line (function)`.
        executed: executions by rank.
    """

    number: int  # 0 for a frame that was given up, which leaves no region that could break
    reason: str
    place: str
    executed: Mapping[int, int]

    @property
    def times(self) -> str:
        """'×160', rank by rank where they differ, or 'given up' for such a frame."""
        if not self.number:
            return "given up"
        counts = list(self.executed.values())
        if len(set(counts)) == 1:
            return f"×{counts[0]}"
        return ", ".join(f"rank {rank} ×{n}" for rank, n in self.executed.items())


@dataclass(frozen=True)
class Outlined:
    """The first place where ranks did different things, as it is drawn.

    Args:
        index: the number of the step.
        text: what each rank did.
        spans: start and end in ms, by rank.
    """

    index: int
    text: str
    spans: Mapping[int, tuple[float, float]]


@dataclass(frozen=True)
class Forward:
    """One forward (or step) of a record, ready to be drawn. Times are ms since its start on the earliest rank.

    Args:
        ranks: the ranks that are drawn.
        duration: in ms.
        segments: rank, kind, start, end (ms), compile and name.
        transfers: the same columns; each is cut where the forward of its rank begins and ends.
        marks: rank, at (ms) and number of each executed break.
        counts: regions, breaks and collectives by rank, and at_collective where that is known.
        reasons: the distinct breaks.
        difference: where ranks first differ, or None.
        unit: what was marked, 'forward' or 'step'.
    """

    ranks: list[int]
    duration: float
    segments: pd.DataFrame
    transfers: pd.DataFrame
    marks: pd.DataFrame
    counts: pd.DataFrame
    reasons: list[Reason] = field(default_factory=list)
    difference: Outlined | None = None
    # what was marked: 'forward' or 'step'
    unit: str = "forward"

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return self.segments.empty


def take_forward(
    tables: Tables,
    number: int | str = 0,
    ranks: Sequence[int] | None = None,
) -> Forward:
    """Take one forward out of a record.

    Args:
        tables: The record, of all ranks.
        number: of the forward, or 'typical' for the one whose time on its slowest rank is the median of all.
        ranks: the ranks to take; by default all.

    Returns:
        The forward.

    Raises:
        ValueError: the forward or rank was not recorded.
    """
    segments, ranges = tables.segments.frame(), tables.ranges.frame()
    segments = segments[segments["forward"] >= 0]
    if segments.empty:
        columns = ("rank", "kind", "start", "end", "compile", "name", "at", "number")
        nothing = pd.DataFrame({column: [] for column in columns})
        return Forward([], 0.0, nothing, nothing, nothing, nothing)
    recorded = sorted(int(n) for n in set(segments["forward"]))
    unit = marked(ranges["name"])
    if number == "typical":
        number = typical(segments)
    if number not in recorded:
        raise ValueError(f"{unit} {number} was not recorded: there are {', '.join(map(str, recorded))}")
    segments = segments[segments["forward"] == number]
    there_are = sorted(int(rank) for rank in set(segments["rank"]))
    ranks = there_are if ranks is None else list(ranks)
    unknown = [rank for rank in ranks if rank not in there_are]
    if unknown or not ranks:
        said = f"rank {unknown[0]} was not recorded" if unknown else "no rank to draw"
        raise ValueError(f"{said}: {unit} {number} has ranks {', '.join(map(str, there_are))}")

    tables = tables.of_ranks(ranks)
    difference = first_difference(tables)
    segments, ranges = (part[part["rank"].isin(ranks)] for part in (segments, ranges))
    origin = float(segments["start_us"].min())
    segments, ranges = _in_ms(segments, origin), _in_ms(ranges, origin)
    transfers = _during(segments, ranges[(ranges["kind"] == "transfer") & (ranges["thread"] != "main")])
    ranges = ranges[ranges["forward"] == number]
    marks, reasons = executed_breaks(tables, int(number), origin, ranks)
    counts = count(ranges, marks, ranks)
    if len(recorded) == 1:
        at = {rank: sum(c.at_collective for c in tables.compiles if c.rank == rank) for rank in ranks}
        counts["at_collective"] = pd.Series(at)
    outlined = None
    if difference is not None and difference.forward == number:
        spans = {
            rank: ((step.start_us - origin) / 1e3, (step.end_us - origin) / 1e3) if step else None
            for rank, step in difference.steps.items()
        }
        outlined = Outlined(difference.index, str(difference).partition(": ")[2], narrow(segments, spans))
    duration = float(segments["end"].max())
    return Forward(
        ranks=ranks,
        duration=duration,
        segments=segments,
        transfers=transfers,
        marks=marks,
        counts=counts,
        reasons=reasons,
        difference=outlined,
        unit=unit,
    )


def _in_ms(frame: pd.DataFrame, origin: float) -> pd.DataFrame:
    out = frame.assign(start=(frame["start_us"] - origin) / 1e3, end=(frame["end_us"] - origin) / 1e3)
    return out.sort_values(["rank", "start"], kind="stable").reset_index(drop=True)


def _during(segments: pd.DataFrame, transfers: pd.DataFrame) -> pd.DataFrame:
    """The parts of transfers within the forward of their own rank."""
    ranks = segments.groupby("rank")
    begin, end = (transfers["rank"].map(edge) for edge in (ranks["start"].min(), ranks["end"].max()))
    cut = transfers.assign(start=transfers["start"].clip(lower=begin), end=transfers["end"].clip(upper=end))
    return cut[cut["start"] < cut["end"]]


def typical(segments: pd.DataFrame) -> int:
    """Return the number of the forward whose time on its slowest rank is the median of all."""
    spans = segments.groupby("forward").agg(start=("start_us", "min"), end=("end_us", "max"))
    took = (spans["end"] - spans["start"]).sort_values(kind="stable")
    return int(took.index[(len(took) - 1) // 2])


def collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """Select events or segments of collectives, without waits, wrapping of results, and messages between two ranks."""
    mine = frame[(frame["kind"] == "collective") & ~frame["name"].astype(str).str.contains(NONE)]
    return mine[mine["thread"] == "main"] if "thread" in mine.columns else mine


def executed_breaks(
    tables: Tables, number: int, origin: float, ranks: Sequence[int]
) -> tuple[pd.DataFrame, list[Reason]]:
    """Place every executed break of a forward on the time axis, and number the distinct ones.

    Args:
        tables: of the record.
        number: of the forward.
        origin: when the forward began, in microseconds.
        ranks: the ranks to count on.

    Returns:
        A table with rank, at (ms) and number, and the distinct breaks in the order in which they happen.
    """
    met = [(region.rank, mark, at) for region, mark, at in break_times(tables) if region.forward == number]
    met.sort(key=lambda one: one[2])
    numbers: dict[tuple[str, str], int] = {}
    for _, mark, _ in met:
        numbers.setdefault((mark.name, place(*mark.cause)), len(numbers) + 1)
    rows = [(rank, (at - origin) / 1e3, numbers[mark.name, place(*mark.cause)]) for rank, mark, at in met]
    marks = pd.DataFrame(rows, columns=["rank", "at", "number"])
    reasons = [
        Reason(n, name, at, {rank: sum(r == rank and k == n for r, _, k in rows) for rank in ranks})
        for (name, at), n in numbers.items()
    ]
    return marks, [*reasons, *_given_up(tables.marks)]


def _given_up(marks: Sequence[Mark]) -> list[Reason]:
    """Frames that were given up, at the line where each begins."""
    frames = {(mark.name, mark.place): mark for mark in marks if mark.kind in ("def", "limit")}
    alone = {mark.compile for mark in frames.values()}
    frames |= {
        (mark.name, mark.place): mark
        for mark in marks
        if mark.kind == "gave-up" and mark.compile not in alone
    }
    return [Reason(0, name, at, {}) for name, at in frames]


def count(ranges: pd.DataFrame, marks: pd.DataFrame, ranks: Sequence[int]) -> pd.DataFrame:
    """Count regions, executed breaks and collectives of a forward by rank."""
    regions, calls = ranges[ranges["kind"] == "region"], _outermost(collectives(ranges))
    found = {"regions": regions, "breaks": marks, "collectives": calls}
    return pd.DataFrame(
        {
            name: frame.groupby("rank").size().reindex(ranks).fillna(0).astype(int)
            for name, frame in found.items()
        }
    )


def _outermost(events: pd.DataFrame) -> pd.DataFrame:
    """Events that lie in no other event of their rank: one collective may be several nested ranges."""
    ordered = events.sort_values(["rank", "start", "end"], ascending=[True, True, False])
    reach = ordered.groupby("rank")["end"].cummax().groupby(ordered["rank"]).shift()
    return ordered[~(ordered["end"] <= reach)]


def narrow(
    segments: pd.DataFrame, spans: Mapping[int, tuple[float, float] | None]
) -> dict[int, tuple[float, float]]:
    """Cut spans down to the first thing they do, because regions nest; a rank that did nothing more ends there."""
    out = {}
    for rank, span in spans.items():
        mine = segments[segments["rank"] == rank]
        if span is None:
            end = float(mine["end"].max())
            out[rank] = (end, end)
            continue
        work = mine[mine["kind"].isin(["compute", "collective"]) & (mine["start"] >= span[0])]
        out[rank] = (float(span[0]), float(min([span[1], *work["end"].head(1)])))
    return out
