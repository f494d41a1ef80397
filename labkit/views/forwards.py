"""One recorded forward, prepared for drawing: times in ms, executed breaks, counts, and where ranks first differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from labkit.records.rank_difference import break_times, first_difference
from labkit.records.record import Record, merge
from labkit.trace.events import marked
from labkit.views.tables import need, table_of

__all__ = [
    "Forward",
    "Outlined",
    "Reason",
    "collectives",
    "merged_record",
    "take_forward",
    "typical",
]

COLUMNS = {
    "segments": ("rank", "forward", "kind", "start_us", "end_us", "compile_id", "name"),
    "events": ("rank", "forward", "kind", "name", "start_us", "end_us", "thread", "compile_id"),
    "breaks": ("rank", "kind", "reason", "place", "compile_id"),
    "graphs": ("rank", "compile_id", "digest"),
}
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
        segments: rank, kind, start, end (ms), compile_id and name.
        transfers: the same columns; each is cut where the forward of its rank begins and ends.
        marks: rank, at (ms) and number of each executed break.
        counts: regions, breaks and collectives by rank, and at_collective where that is known.
        reasons: the distinct breaks.
        difference: where ranks first differ, or None.
        on_gpu: kernels and copies were recorded, so the lanes of the host are not all there is.
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
    # kernels and copies were recorded, so the host's lanes are not all there is
    on_gpu: bool = False
    # what was marked: 'forward' or 'step'
    unit: str = "forward"

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return self.segments.empty

    @property
    def densest(self) -> int:
        """The number of segments on the busiest rank."""
        return 0 if self.empty else int(self.segments.groupby("rank").size().max())


def merged_record(record: Any) -> Any:
    """Merge what `ranks.run` returns, one record for each rank, into one record; return anything else unchanged."""
    parts = list(record.values()) if isinstance(record, Mapping) else record
    if isinstance(parts, Sequence) and parts and all(isinstance(part, Record) for part in parts):
        return merge(parts)
    return record


def take_forward(
    record: Any,
    number: int | str = 0,
    ranks: Sequence[int] | None = None,
) -> Forward:
    """Take one forward out of a record, or out of tables shaped like one.

    Args:
        record: a record, or one for each rank.
        number: of the forward, or 'typical' for the one whose time on its slowest rank is the median of all.
        ranks: the ranks to take; by default all.

    Returns:
        The forward.

    Raises:
        ValueError: a table or column is missing, the forward or rank was not recorded, or there are several variants.
    """
    record = merged_record(record)
    tables = {name: table_of(record, name) for name in COLUMNS}
    if tables["segments"] is None or tables["events"] is None:
        missing = next(name for name in ("segments", "events") if tables[name] is None)
        raise ValueError(
            f"a strip is drawn from a record, and this {type(record).__name__} has no table {missing!r}"
        )
    segments, events, breaks, graphs = (
        pd.DataFrame(columns=columns) if tables[name] is None else need(tables[name], columns, name)
        for name, columns in COLUMNS.items()
    )
    if "variant" in segments.columns and segments["variant"].nunique() > 1:
        there = ", ".join(map(str, pd.unique(segments["variant"])))
        raise ValueError(f"table 'segments' holds several variants ({there}): choose one to draw")
    segments = segments[segments["forward"] >= 0]
    if segments.empty:
        nothing = pd.DataFrame(
            {c: [] for c in ("rank", "kind", "start", "end", "compile_id", "name", "at", "number")}
        )
        return Forward([], 0.0, nothing, nothing, nothing, nothing)
    recorded = sorted(int(n) for n in set(segments["forward"]))
    unit = marked(events["name"])
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

    segments, events, breaks = (part[part["rank"].isin(ranks)] for part in (segments, events, breaks))
    difference = first_difference(events, graphs, breaks)
    origin = float(segments["start_us"].min())
    segments, events = _in_ms(segments, origin), _in_ms(events, origin)
    transfers = _during(segments, events[(events["kind"] == "transfer") & (events["thread"] != "main")])
    on_gpu = bool(events["thread"].str.startswith("stream ").any())
    events = events[events["forward"] == number]
    marks, reasons = executed_breaks(events, breaks, ranks)
    counts = count(events, marks, ranks)
    if len(recorded) == 1 and "at_collective" in breaks.columns:
        ended = breaks[breaks["kind"] == "break"].groupby("rank")["at_collective"].sum()
        counts["at_collective"] = ended.reindex(ranks).fillna(0).astype(int)
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
        on_gpu=on_gpu,
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
    events: pd.DataFrame, breaks: pd.DataFrame, ranks: Sequence[int]
) -> tuple[pd.DataFrame, list[Reason]]:
    """Place every executed break on the time axis, and number the distinct ones.

    Args:
        events: of the forward.
        breaks: of the record.
        ranks: the ranks to count on.

    Returns:
        A table with rank, at (ms) and number, and the distinct breaks in the order in which they happen.
    """
    marks = break_times(events, breaks)[["rank", "compile_id", "at", "reason", "place"]]
    marks["number"] = marks.groupby(["reason", "place"], sort=False).ngroup() + 1
    reasons: list[Reason] = []
    for key, hits in marks.groupby("number"):
        executed = {rank: int((hits["rank"] == rank).sum()) for rank in ranks}
        reasons.append(Reason(int(key), hits["reason"].iloc[0], hits["place"].iloc[0], executed))
    return marks.reset_index(drop=True), [*reasons, *_given_up(breaks)]


def _given_up(table: pd.DataFrame) -> list[Reason]:
    skipped = table[table["kind"] == "skip"].drop_duplicates(["reason", "place", "name"])
    # a frame that a call gives up is itself elsewhere than the break
    places = (row.place if row.place.endswith(f"({row.name})") else row.name for row in skipped.itertuples())
    return [Reason(0, reason, place, {}) for reason, place in zip(skipped["reason"], places, strict=True)]


def count(events: pd.DataFrame, marks: pd.DataFrame, ranks: Sequence[int]) -> pd.DataFrame:
    """Count regions, executed breaks and collectives of a forward by rank."""
    regions, calls = events[events["kind"] == "region"], _outermost(collectives(events))
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
