"""What happened in one forward: breaks at the moment they were executed, counts, and where ranks first differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

__all__ = ["Difference", "Reason", "breaks", "collectives", "counts", "difference", "narrow", "region_runs"]

NONE = r"wait|_wrap|::send|::recv"  # a message is between two ranks: others of the group have no part in it
COUNTS = ("regions", "breaks", "collectives")


@dataclass(frozen=True)
class Reason:
    """One distinct break: where, why, and how often each rank executed it in this forward."""

    number: int  # 0 for a frame that was given up, which leaves no region that could break
    reason: str
    place: str
    executed: Mapping[int, int]

    @property
    def times(self) -> str:
        """'×160', rank by rank where they differ, or that the frame was given up."""
        if not self.number:
            return "given up"
        counts = list(self.executed.values())
        if len(set(counts)) == 1:
            return f"×{counts[0]}"
        return ", ".join(f"rank {rank} ×{n}" for rank, n in self.executed.items())


@dataclass(frozen=True)
class Difference:
    """The first place where ranks did different things: the step's number, what each did, and when (ms, by rank)."""

    index: int
    text: str
    spans: Mapping[int, tuple[float, float]]


def region_runs(segments: pd.DataFrame) -> pd.DataFrame:
    """Every run of a compiled region, told from segments alone: compute right after the entry of its region."""
    before = segments.shift()
    same = (segments["rank"] == before["rank"]) & (segments["compile_id"] == before["compile_id"])
    entered = same & (before["kind"] == "entry")
    return segments[(segments["kind"] == "compute") & (segments["compile_id"] != "") & entered]


def collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """Events or segments of collectives, without waiting for one or wrapping its result, and no messages."""
    mine = frame[(frame["kind"] == "collective") & ~frame["name"].astype(str).str.contains(NONE)]
    return mine[mine["thread"] == "main"] if "thread" in mine.columns else mine


def breaks(
    segments: pd.DataFrame, events: pd.DataFrame | None, table: pd.DataFrame | None, ranks: Sequence[int]
) -> tuple[pd.DataFrame, list[Reason]]:
    """Where each executed break happened (rank, at, number), and the distinct ones in the order they happen.

    A region whose compile ended in a break executes it each time it runs, when its compiled part is done. Without
    compile ids in the table nothing can be placed, and the list has the numbers that the table gives.
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
    """Every run of a region with the moment its compiled part was done (`at`, ms)."""
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


def counts(
    segments: pd.DataFrame,
    events: pd.DataFrame | None,
    marks: pd.DataFrame,
    ranks: Sequence[int],
    known: pd.DataFrame | None,
) -> pd.DataFrame:
    """Regions, breaks and collectives of this forward by rank; what the record counted itself wins."""
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
    """Events that lie in no other one of their rank: one collective may be several nested ranges."""
    ordered = events.sort_values(["rank", "start", "end"], ascending=[True, True, False])
    reach = ordered.groupby("rank")["end"].cummax().groupby(ordered["rank"]).shift()
    return ordered[~(ordered["end"] <= reach)]


def difference(segments: pd.DataFrame, ranks: Sequence[int]) -> Difference | None:
    """The first step (a region entered, a collective called) at which ranks differ, from segments alone."""
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
    """Spans cut down to the first thing they do, because regions nest; a rank that did nothing more ends there."""
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
