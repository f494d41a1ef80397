"""From a record, a report or plain tables to one forward that can be drawn: times in ms, breaks where they happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pandas as pd

from labkit.trace.events import marked
from labkit.views import steps
from labkit.views.steps import Difference, Reason

__all__ = ["Forward", "forward", "need", "of_report", "table", "table_of"]

SEGMENTS = ("rank", "forward", "kind", "start_us", "end_us", "compile_id", "name")
EVENTS = ("rank", "forward", "kind", "name", "start_us", "end_us", "thread", "compile_id")
BREAKS = ("rank", "kind", "reason", "place")
OVERHEAD = ("dispatch", "lookup", "entry", "python")  # neither compute nor communication


@dataclass(frozen=True)
class Forward:
    """One forward (or step) of a record, ready to draw. Times are ms from its start on the earliest rank.

    `segments` and `transfers` have rank, kind, start, end (ms), compile_id and name; `breaks` has rank, at (ms) and
    number; `counts` has regions, breaks and collectives by rank, and at_collective where that is known. A transfer is
    cut where its own rank's forward begins and ends.
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

    def share(self, rank: int, kinds: Iterable[str] = OVERHEAD) -> float:
        """The fraction of a rank's forward spent in these kinds of segment, 0 to 1."""
        mine = self.segments[self.segments["rank"] == rank]
        lengths = mine["end"] - mine["start"]
        total = lengths.sum()
        return float(lengths[mine["kind"].isin(list(kinds))].sum() / total) if total else 0.0

    def took(self, rank: int) -> float:
        """How long the forward took on a rank, in ms."""
        mine = self.segments[self.segments["rank"] == rank]
        return float(mine["end"].max() - mine["start"].min()) if len(mine) else 0.0


def need(frame: Any, columns: Sequence[str], table: str) -> pd.DataFrame:
    """Return the frame, or raise ValueError naming the table and the columns it lacks.

    >>> need(pd.DataFrame({"rank": [0]}), ["rank", "us"], "breakdown")
    Traceback (most recent call last):
    ValueError: table 'breakdown' has no column 'us': it has rank
    """
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"table {table!r} must be a DataFrame, got {type(frame).__name__}")
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ValueError(
            f"table {table!r} has no column {names}: it has {', '.join(map(str, frame.columns))}"
        )
    return frame


def table_of(record: Any, name: str) -> pd.DataFrame | None:
    """A table of a record, a report or a mapping of DataFrames; None where it has none of that name."""
    tables = record if isinstance(record, Mapping) else getattr(record, "tables", None)
    if isinstance(tables, Mapping):
        return tables.get(name)
    found = getattr(record, name, None)
    return found if isinstance(found, pd.DataFrame) else None


def table(report: Any, name: str, columns: Sequence[str]) -> pd.DataFrame:
    """A table of a report with the columns that a figure needs.

    Raises ValueError naming what there is for a table that the report lacks, or a column that the table lacks.
    """
    found = table_of(report, name)
    if found is None:
        raise ValueError(
            f"this report has no table {name!r}: it has {', '.join(getattr(report, 'tables', {}))}"
        )
    return need(found, columns, name)


def whole(record: Any) -> Any:
    """One record of all ranks: what `ranks.run` returns, a record a rank, is merged; anything else stays as it is."""
    if isinstance(record, Sequence) and len(record) and hasattr(type(next(iter(record))), "merge"):
        return type(next(iter(record))).merge(list(record))
    return record


def of_report(report: Any, variant: str | None = None, blocks: int | None = None) -> SimpleNamespace:
    """The tables of one variant (and one number of blocks) of a report, shaped like a record.

    Raises ValueError naming what there is when the report has no segments, or not of this variant or size.
    """
    found: dict[str, Any] = {"label": getattr(report, "label", "")}
    for name in ("segments", "events", "breaks", "counts"):
        frame = table_of(report, name)
        if frame is None:
            continue
        for column, wanted in (("variant", variant), ("blocks", blocks)):
            if wanted is None or column not in frame.columns:
                continue
            if name == "segments" and wanted not in set(frame[column]):
                there = ", ".join(map(str, pd.unique(frame[column])))
                raise ValueError(f"no {column} {wanted!r} in table 'segments': it has {there}")
            frame = frame[frame[column] == wanted]
        found[name] = frame
    if "segments" not in found:
        raise ValueError("this report has no table 'segments': there is nothing to draw a strip from")
    return SimpleNamespace(**found)


def forward(
    record: Any,
    number: int | str = 0,
    ranks: Sequence[int] | None = None,
    alike: Sequence[Sequence[int]] | None = None,
) -> Forward:
    """Take one forward out of a record (or of tables shaped like one): by number, or the 'typical' one.

    Typical is the forward whose time, on its slowest rank, is the median of all forwards. `alike`: the groups within
    which ranks are compared, by default one of all ranks.

    Raises ValueError for a missing table or column, a forward or rank that was not recorded, or several variants.
    """
    record = whole(record)
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
    marks, reasons = steps.breaks(segments, events, breaks, ranks)
    counts = steps.counts(segments, events, marks, ranks, _known_counts(record, len(recorded)))
    groups = [ranks] if alike is None else [[rank for rank in ranks if rank in group] for group in alike]
    apart = (_difference(record, int(number), segments, group, origin) for group in groups if len(group) > 1)
    difference = next((found for found in apart if found is not None), None)
    return Forward(ranks, duration, segments, transfers, marks, counts, reasons, difference, on_gpu, unit)


def _in_ms(frame: pd.DataFrame, origin: float) -> pd.DataFrame:
    out = frame.assign(start=(frame["start_us"] - origin) / 1e3, end=(frame["end_us"] - origin) / 1e3)
    return out.sort_values(["rank", "start"], kind="stable").reset_index(drop=True)


def _during(segments: pd.DataFrame, transfers: pd.DataFrame) -> pd.DataFrame:
    """The parts of transfers that lie in their own rank's forward: it may begin before one ends, or end before it."""
    ranks = segments.groupby("rank")
    begin, end = (transfers["rank"].map(edge) for edge in (ranks["start"].min(), ranks["end"].max()))
    cut = transfers.assign(start=transfers["start"].clip(lower=begin), end=transfers["end"].clip(upper=end))
    return cut[cut["start"] < cut["end"]]


def _typical(segments: pd.DataFrame) -> int:
    spans = segments.groupby("forward").agg(start=("start_us", "min"), end=("end_us", "max"))
    took = (spans["end"] - spans["start"]).sort_values(kind="stable")
    return int(took.index[(len(took) - 1) // 2])


def _known_counts(record: Any, forwards: int) -> pd.DataFrame | None:
    """What the record counted itself: a report's table, or a record's method where it is about one forward."""
    method = getattr(record, "counts", None)
    if callable(method):
        return method() if forwards == 1 else None
    return table_of(record, "counts")


def _difference(
    record: Any, number: int, segments: pd.DataFrame, ranks: Sequence[int], origin: float
) -> Difference | None:
    method = getattr(record, "first_difference", None)
    if not callable(method):
        return steps.difference(segments, ranks)
    found = method(ranks) if len(ranks) < segments["rank"].nunique() else method()
    if found is None or found.forward != number or len(ranks) < 2:
        return None
    spans = {
        rank: ((step.start_us - origin) / 1e3, (step.end_us - origin) / 1e3) if step else None
        for rank, step in found.steps.items()
        if rank in ranks
    }
    return Difference(found.index, str(found).partition(": ")[2], steps.narrow(segments, spans))
