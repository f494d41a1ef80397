"""One recorded forward, prepared for drawing: times in ms, executed breaks, counts, and where ranks first differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from labkit.trace.events import marked
from labkit.views.tables import need, table_of

__all__ = [
    "SEGMENTS",
    "Difference",
    "Forward",
    "Reason",
    "collectives",
    "merged_record",
    "take_forward",
]

SEGMENTS = ("rank", "forward", "kind", "start_us", "end_us", "compile_id", "name")
EVENTS = ("rank", "forward", "kind", "name", "start_us", "end_us", "thread", "compile_id")
BREAKS = ("rank", "kind", "reason", "place")
NONE = r"wait|_wrap|::send|::recv"  # a message is between two ranks: others of the group have no part in it
COUNTS = ("regions", "breaks", "collectives")


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
class Difference:
    """The first place where ranks did different things.

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
        breaks: rank, at (ms) and number of each executed break.
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
    breaks: pd.DataFrame
    counts: pd.DataFrame
    reasons: list[Reason] = field(default_factory=list)
    difference: Difference | None = None
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
    first, *others = record if isinstance(record, Sequence) and len(record) else [None]
    if hasattr(type(first), "with_ranks"):
        return first.with_ranks(others)  # type: ignore[union-attr]
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
    segments = table_of(record, "segments")
    if segments is None:
        raise ValueError(
            f"a strip is drawn from a record, and this {type(record).__name__} has no table 'segments'"
        )
    segments = need(segments, SEGMENTS, "segments")
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
    events = table_of(record, "events")
    if events is not None and len(events):
        events = need(events, EVENTS, "events")
    else:
        events = None
    unit = "forward" if events is None else marked(events["name"])
    if number == "typical":
        number = _typical(segments)
    if number not in recorded:
        raise ValueError(f"{unit} {number} was not recorded: there are {', '.join(map(str, recorded))}")
    segments = segments[segments["forward"] == number]
    there_are = sorted(int(rank) for rank in set(segments["rank"]))
    ranks = there_are if ranks is None else list(ranks)
    unknown = [rank for rank in ranks if rank not in there_are]
    if unknown or not ranks:
        said = f"rank {unknown[0]} was not recorded" if unknown else "no rank to draw"
        raise ValueError(f"{said}: {unit} {number} has ranks {', '.join(map(str, there_are))}")

    segments = segments[segments["rank"].isin(ranks)]
    origin = float(segments["start_us"].min())
    segments = _in_ms(segments, origin)
    duration = float(segments["end"].max())
    transfers, on_gpu = segments.iloc[:0], False
    if events is not None:
        events = _in_ms(events[events["rank"].isin(ranks)], origin)
        transfers = _during(segments, events[(events["kind"] == "transfer") & (events["thread"] != "main")])
        on_gpu = bool(events["thread"].str.startswith("stream ").any())
        events = events[events["forward"] == number]
    breaks = table_of(record, "breaks")
    if breaks is not None and len(breaks):
        breaks = need(breaks, BREAKS, "breaks")
        breaks = breaks[breaks["rank"].isin(ranks)]
    marks, reasons = executed_breaks(segments, events, breaks, ranks)
    counts = counted(segments, events, marks, ranks, _known_counts(record, len(recorded)))
    difference = _difference(record, int(number), segments, ranks, origin) if len(ranks) > 1 else None
    return Forward(ranks, duration, segments, transfers, marks, counts, reasons, difference, on_gpu, unit)


def _in_ms(frame: pd.DataFrame, origin: float) -> pd.DataFrame:
    out = frame.assign(start=(frame["start_us"] - origin) / 1e3, end=(frame["end_us"] - origin) / 1e3)
    return out.sort_values(["rank", "start"], kind="stable").reset_index(drop=True)


def _during(segments: pd.DataFrame, transfers: pd.DataFrame) -> pd.DataFrame:
    """The parts of transfers within the forward of their own rank."""
    ranks = segments.groupby("rank")
    begin, end = (transfers["rank"].map(edge) for edge in (ranks["start"].min(), ranks["end"].max()))
    cut = transfers.assign(start=transfers["start"].clip(lower=begin), end=transfers["end"].clip(upper=end))
    return cut[cut["start"] < cut["end"]]


def _typical(segments: pd.DataFrame) -> int:
    spans = segments.groupby("forward").agg(start=("start_us", "min"), end=("end_us", "max"))
    took = (spans["end"] - spans["start"]).sort_values(kind="stable")
    return int(took.index[(len(took) - 1) // 2])


def _known_counts(record: Any, forwards: int) -> pd.DataFrame | None:
    """The counts that the record states itself: a table of a report, or a method of a record with one forward."""
    method = getattr(record, "counts", None)
    if callable(method):
        return method() if forwards == 1 else None
    return table_of(record, "counts")


def _difference(
    record: Any, number: int, segments: pd.DataFrame, ranks: Sequence[int], origin: float
) -> Difference | None:
    method = getattr(record, "first_difference", None)
    if not callable(method):
        return first_difference(segments, ranks)
    found = method(ranks) if len(ranks) < segments["rank"].nunique() else method()
    if found is None or found.forward != number or len(ranks) < 2:
        return None
    spans = {
        rank: ((step.start_us - origin) / 1e3, (step.end_us - origin) / 1e3) if step else None
        for rank, step in found.steps.items()
        if rank in ranks
    }
    return Difference(found.index, str(found).partition(": ")[2], narrow(segments, spans))


def region_runs(segments: pd.DataFrame) -> pd.DataFrame:
    """Find every run of a compiled region in segments alone: compute right after the entry of its region."""
    before = segments.shift()
    same = (segments["rank"] == before["rank"]) & (segments["compile_id"] == before["compile_id"])
    entered = same & (before["kind"] == "entry")
    return segments[(segments["kind"] == "compute") & (segments["compile_id"] != "") & entered]


def collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """Select events or segments of collectives, without waits, wrapping of results, and messages between two ranks."""
    mine = frame[(frame["kind"] == "collective") & ~frame["name"].astype(str).str.contains(NONE)]
    return mine[mine["thread"] == "main"] if "thread" in mine.columns else mine


def executed_breaks(
    segments: pd.DataFrame, events: pd.DataFrame | None, table: pd.DataFrame | None, ranks: Sequence[int]
) -> tuple[pd.DataFrame, list[Reason]]:
    """Place every executed break on the time axis.

    A region whose compilation ended in a break executes it each time it runs, when its compiled part is done. Without
    compile ids in the table nothing can be placed, and the list has the numbers that the table gives.

    Args:
        segments: of the forward.
        events: of the forward, or None.
        table: breaks of the record, or None.
        ranks: the ranks to count on.

    Returns:
        A table with rank, at (ms) and number, and the distinct breaks in the order in which they happen.
    """
    nothing = pd.DataFrame({"rank": [], "at": [], "number": []})
    if table is None or table.empty:
        return nothing, []
    if "compile_id" not in table.columns:
        return nothing, [*_listed(table), *_given_up(table)]
    broken = table[table["kind"] == "break"].drop_duplicates(["rank", "compile_id"])
    runs = _runs(segments, events)[["rank", "compile_id", "at"]]
    marks = runs.merge(broken[["rank", "compile_id", "reason", "place"]]).sort_values("at", kind="stable")
    marks["number"] = marks.groupby(["reason", "place"], sort=False).ngroup() + 1
    reasons: list[Reason] = []
    for key, hits in marks.groupby("number"):
        executed = {rank: int((hits["rank"] == rank).sum()) for rank in ranks}
        reasons.append(Reason(int(key), hits["reason"].iloc[0], hits["place"].iloc[0], executed))
    return marks.reset_index(drop=True), [*reasons, *_given_up(table)]


def _runs(segments: pd.DataFrame, events: pd.DataFrame | None) -> pd.DataFrame:
    """Every run of a region with the time `at` (ms) when its compiled part was done."""
    if events is None:
        return region_runs(segments).assign(at=lambda runs: runs["end"])
    runs = events[events["kind"] == "region"].sort_values("start")
    inside = events[events["kind"] == "compiled"][["rank", "compile_id", "start", "end"]]
    inside = inside.rename(columns={"end": "at"}).sort_values("start")
    if inside.empty:
        return runs.assign(at=runs["start"])
    runs = pd.merge_asof(runs, inside, on="start", by=["rank", "compile_id"], direction="forward")
    # a region with nothing to compute before its break calls no kernel: its break is where it starts
    return runs.assign(at=runs["at"].where(runs["at"] <= runs["end"], runs["start"]))


def _listed(table: pd.DataFrame) -> list[Reason]:
    """Distinct breaks of a table without compile ids, with the counts it states."""
    ended = table[table["kind"] == "break"]
    if "executed" not in ended.columns:
        return []
    reasons: list[Reason] = []
    for (why, place), rows in ended.groupby(["reason", "place"], sort=False):
        executed = {int(rank): int(n) for rank, n in rows.groupby("rank")["executed"].sum().items()}
        if any(executed.values()):
            reasons.append(Reason(len(reasons) + 1, why, place, executed))
    return reasons


def _given_up(table: pd.DataFrame) -> list[Reason]:
    skipped = table[table["kind"] == "skip"].drop_duplicates(["reason", "place"])
    return [Reason(0, row.reason, row.place, {}) for row in skipped.itertuples()]


def counted(
    segments: pd.DataFrame,
    events: pd.DataFrame | None,
    marks: pd.DataFrame,
    ranks: Sequence[int],
    known: pd.DataFrame | None,
) -> pd.DataFrame:
    """Count regions, breaks and collectives by rank; counts that the record states itself take precedence."""
    if known is not None and {"rank", *COUNTS} <= set(known.columns):
        columns = [c for c in (*COUNTS, "at_collective") if c in known.columns]
        table = known[known["rank"].isin(ranks)].drop_duplicates("rank").set_index("rank")[columns]
        return table.reindex(ranks).fillna(0).round().astype(int)
    if events is None:
        regions, calls = region_runs(segments), collectives(segments)
    else:
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


def first_difference(segments: pd.DataFrame, ranks: Sequence[int]) -> Difference | None:
    """Find the first step (a region entered, a collective called) at which ranks differ, in segments alone."""
    found = {rank: _steps(segments[segments["rank"] == rank]) for rank in ranks}
    if len(found) < 2:
        return None
    for i in range(max(map(len, found.values()))):
        at = {rank: mine[i] if i < len(mine) else None for rank, mine in found.items()}
        names = {rank: step[0] if step else "nothing more" for rank, step in at.items()}
        if len(set(names.values())) > 1:
            spans = {rank: (step[1], step[2]) if step else None for rank, step in at.items()}
            said = "; ".join(f"rank {rank}: {name}" for rank, name in names.items())
            return Difference(i, said, narrow(segments, spans))
    return None


def _steps(mine: pd.DataFrame) -> list[tuple[str, float, float]]:
    regions, calls = region_runs(mine), collectives(mine)
    # compiled code may be named by a hash, which ranks need not share: then the region's id stands for it
    names = regions["name"].where(~regions["name"].str.startswith("##"), regions["compile_id"])
    steps = list(zip("region " + names, regions["start"], regions["end"], strict=True))
    steps += list(zip("collective " + calls["name"], calls["start"], calls["end"], strict=True))
    return sorted(steps, key=lambda step: step[1])


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
