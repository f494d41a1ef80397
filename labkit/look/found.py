"""What ranks recorded of a program: their tables merged, what each graph break costs at most, and how ranks differ."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import files
from labkit.look import calls, journal, replicas
from labkit.look.steps import Options
from labkit.records import Difference, Record, diff, merge
from labkit.records.reasons import Why, read_break
from labkit.records.record import TABLES
from labkit.report import Report
from labkit.trace.events import collective_op, marked, point_to_point
from labkit.views.forwards import take_forward

__all__ = ["Look", "gather", "nothing", "read", "together"]

HELD = {"replicas": replicas.TYPES, "calls": calls.TYPES}
WHOLE = ("graphs", "breaks", "recompiles", "compiles")
NAME_A_STEP = "give the function that is a step with --step, in a notebook with step="
COUNTS = ["regions", "breaks", "frames given up", "graphs", "recompiles", "collectives"]


@dataclass
class Look:
    """The records of all ranks of one program.

    Args:
        name: Of the program.
        record: The steps of all ranks.
        whole: What was compiled in the whole run: graphs, breaks, recompiles, compiles and guards.
        provenance: Of rank 0.
        notes: What a reader has to know about gaps.
        missing: Ranks that wrote nothing.
        held: What ranks held after the last recorded step, `replicas`, and the `calls` of these steps.
    """

    name: str
    record: Record
    whole: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    held: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """What was marked: 'step' or 'forward'."""
        return marked(self.record.events["name"])

    @property
    def steps(self) -> int:
        """Number of steps that every rank recorded."""
        return int(self.record.counts["forwards"].min()) if len(self.record.events) else 0

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted(int(rank) for rank in self.whole["graphs"]["rank"].unique()) or self.record.ranks

    @property
    def counts(self) -> pd.DataFrame:
        """Count, one row for each rank: regions, breaks and collectives per step; the others in the whole run."""
        found = self.record.counts.set_index("rank")[["regions", "breaks", "collectives"]]
        graphs, breaks = self.whole["graphs"], self.whole["breaks"]
        for name, rows in (
            ("frames given up", breaks[breaks["kind"] == "skip"]),
            ("graphs", graphs[graphs["ops"] > 0]),
            ("recompiles", self.whole["recompiles"]),
        ):
            found[name] = rows.groupby("rank").size().reindex(found.index).fillna(0).astype("int64")
        return found.reset_index()[["rank", *COUNTS]]

    def compiled_breaks(self) -> str:
        """Return how many breaks each rank compiled in the whole run, frames given up included, in words."""
        sizes = self.whole["breaks"].groupby("rank").size().reindex(self.ranks).fillna(0)
        return ", ".join(f"{size:g} on rank {rank}" for rank, size in sizes.items())

    @property
    def collectives(self) -> pd.DataFrame:
        """Count each rank's collectives per step, by operation and place, in the order of the first call."""
        events = self.record.events
        calls = events[(events["kind"] == "collective") & (events["forward"] >= 0)]
        calls = calls[~calls["name"].map(point_to_point).astype(bool)]
        calls = calls.assign(operation=calls["name"].map(collective_op))
        return self._per_step(calls, ["operation", "place"])

    def regions(self) -> pd.DataFrame:
        """Count how often each rank ran each compiled region per step, in the order of the first call."""
        events = self.record.events
        return self._per_step(
            events[(events["kind"] == "region") & (events["forward"] >= 0)], ["name", "place"]
        )

    def _per_step(self, rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
        sized = rows.groupby([*by, "rank"], sort=False).size().div(max(self.steps, 1)).unstack("rank")
        sized = sized.reindex(columns=self.ranks).fillna(0)
        return sized.rename(columns=lambda rank: f"rank {rank}").reset_index().rename_axis(columns=None)

    @functools.cached_property
    def breaks(self) -> pd.DataFrame:
        """The executed graph breaks, those that cost most first.

        Returns:
            Columns reason, place, one for each rank with the executions per step, `outside_ms` (the time outside of
            compiled regions around the break per step, on the rank where it is longest: an upper bound of its cost),
            `share` of the step, explanation and hints. Times are missing where operators were not recorded.
        """
        marks = [self._around(int(n)) for n in sorted(set(self.record.segments["forward"]) - {-1})]
        if not marks:
            ended = self.record.breaks[self.record.breaks["executed"] > 0].assign(ms=float("nan"))
            marks = [ended.loc[ended.index.repeat(ended["executed"])][["rank", "reason", "place", "ms"]]]
        rows = pd.concat(marks)
        table = self._per_step(rows, ["reason", "place"])
        slowest = self.duration_ms()
        texts = self.record.breaks.drop_duplicates(["reason", "place"]).set_index(["reason", "place"])["text"]
        for i, row in table.iterrows():
            mine = rows[(rows["reason"] == row["reason"]) & (rows["place"] == row["place"])]
            outside = mine.groupby("rank")["ms"].sum(min_count=1).max() / max(self.steps, 1)
            text = texts[row["reason"], row["place"]]
            kind = read_break(text, Why(row["reason"], row["place"], text))
            table.loc[i, ["outside_ms", "share"]] = outside, outside / slowest
            table.loc[i, ["explanation", "hints"]] = kind.explanation, "\n".join(kind.hints)
        return table.sort_values("outside_ms", ascending=False, ignore_index=True) if len(table) else table

    def cost(self, row: Any) -> str:
        """Return in words what a row of `breaks` costs at most."""
        if pd.isna(row.outside_ms):
            return f"an unknown part of a {self.unit} (operators were not recorded)"
        return f"at most {row.outside_ms:.2f} ms of a {self.unit} ({row.share:.0%})"

    def duration_ms(self) -> float:
        """Return the mean duration of the recorded steps on the slowest rank, in ms and under the profiler."""
        segments = self.record.segments
        spans = (
            segments[segments["forward"] >= 0]
            .groupby(["rank", "forward"])
            .agg(start=("start_us", "min"), end=("end_us", "max"))
        )
        return float(((spans["end"] - spans["start"]) / 1e3).groupby("rank").mean().max())

    def _around(self, number: int) -> pd.DataFrame:
        """Each executed break of a step, with the time from there to the next compiled code, or to the step's end."""
        step = take_forward(self.record, number)
        segments, events = self.record.segments, self.record.events
        origin = float(segments[segments["forward"] == number]["start_us"].min())
        kind = (
            "compiled" if (events["kind"] == "compiled").any() else "region"
        )  # other backends have no such range
        mine = events[(events["forward"] == number) & (events["kind"] == kind) & (events["thread"] == "main")]
        begins = {rank: sorted((rows["start_us"] - origin) / 1e3) for rank, rows in mine.groupby("rank")}
        ends = step.segments.groupby("rank")["end"].max()
        names = {reason.number: reason for reason in step.reasons}
        rows = [
            (row.rank, names[row.number].reason, names[row.number].place,
             min([at for at in begins.get(row.rank, ()) if at > row.at], default=ends[row.rank]) - row.at)
            for row in step.marks.itertuples()
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["rank", "reason", "place", "ms"])

    # --- ranks ---

    def apart(self) -> str:
        """Return where ranks did different things or ran different graphs, in one sentence; '' if nowhere."""
        first: Difference | None = self.record.first_difference() if len(self.record.ranks) > 1 else None
        if first is not None:
            return f"in {self.unit} {first.forward}, {str(first).partition(': ')[2]}"
        counts = self.counts.set_index("rank")
        for name in COUNTS:
            if counts[name].nunique() > 1:
                said = ", ".join(f"{value:g} on rank {rank}" for rank, value in counts[name].items())
                return f"{name}: {said}"
        return next(iter([*calls.differing(self.held["calls"]), *replicas.wrong(self.held["replicas"])]), "")

    def differing(self, stage: str) -> list[tuple[str, Any]]:
        """Compare what rank 0 compiled with what every other rank did.

        Args:
            stage: 'dynamo' for graphs, or 'guards'.

        Returns:
            For each compile whose text differs, its title and the `Diff`.
        """
        table, text = (self.whole["graphs"], "code") if stage == "dynamo" else (self.whole["guards"], "text")
        first, found = self.ranks[0], []
        mine = table[table["rank"] == first].set_index("compile_id")
        for rank in self.ranks[1:]:
            theirs = table[table["rank"] == rank].set_index("compile_id")
            for compile_id in [i for i in mine.index if i in theirs.index]:
                a, b = mine.loc[compile_id], theirs.loc[compile_id]
                if a["name"] == b["name"] and a[text] != b[text] and a[text] and b[text]:
                    compared = diff(a[text], b[text], stage, (f"rank {first}", f"rank {rank}"))
                    if not compared.same:
                        found.append((f"{compile_id} {a['name']}", compared))
        return found

    # --- as a report ---

    def report(self, name: str = "look") -> Report:
        """Return everything as one Report, whose view is the fragment strip."""
        tables = {"summary": self.counts, "costly": self.breaks, **self.record.tables}
        tables |= {"counts": self.record.counts}
        tables |= {f"all_{part}": table for part, table in self.whole.items()}
        apart = self.apart()
        verdicts = [f"ranks differ: {apart}" if apart else "all ranks did the same"]
        title = f"{self.name}: {self.steps} {self.unit}s of {len(self.ranks)} ranks"
        view = "labkit.views:strip"
        return Report(name, title, self.record.label, tables, verdicts, self.provenance, self.notes, view)

    def text(self) -> str:
        """Describe in plain text: the counts, the three breaks to begin with, and whether ranks differ."""
        lines = [f"{self.name}: {self.steps} {self.unit}s recorded  [{self.record.label}]", ""]
        lines += [self.counts.to_string(index=False, float_format=lambda v: f"{v:g}"), ""]
        for number, row in enumerate(self.breaks.head(3).itertuples(), 1):
            lines.append(f"{number}. {row.place}: {row.reason}")
            lines.append(f"   {self.cost(row)} outside compiled code")
            lines += [f"   hint: {hint}" for hint in row.hints.splitlines()[:1]]
        apart = self.apart()
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, f"ranks differ: {apart}" if apart else "all ranks did the same"])


def read(folder: Path) -> Look | None:
    """Read what ranks have written to a folder; None where they wrote nothing.

    Raises:
        ValueError: A file is no record of a rank, or the ranks are of different runs.
    """
    paths = sorted(folder.glob("rank-*.json"))
    if not paths:
        return None
    looked = together([_of_rank(path) for path in paths])
    looked.whole = journal.complete(looked.whole, folder)
    return looked


def gather(folders: Sequence[Path], into: Path) -> None:
    """Copy what the ranks of one run have written to several folders into one, the newest of each rank.

    Args:
        folders: The folders, such as those of the machines of a run.
        into: The folder to copy to; it may be one of them.

    Raises:
        ValueError: A folder has no record, or the ranks are of different runs.
    """
    newest: dict[int, tuple[str, Path]] = {}
    runs: dict[str, Path] = {}
    for folder in folders:
        paths = sorted(folder.glob("rank-*.json"))
        if not paths:
            raise ValueError(f"there is no rank-N.json in {folder}")
        for path in paths:
            about = _of_rank(path).provenance
            runs.setdefault(str(about.get("run", "")), path)
            found = (str(about.get("date", "")), path)
            newest[about["rank"]] = max(newest.get(about["rank"], found), found)
    if len(runs) > 1:
        raise ValueError(f"these are ranks of different runs: {', '.join(map(str, runs.values()))}")
    begun = [path.with_name(f"compiles-{rank}.jsonl") for rank, (_, path) in newest.items()]
    for path in [*(path for _, path in newest.values()), *filter(Path.is_file, begun)]:
        if path.parent.resolve() != into.resolve():
            files.replace(into / path.name, path.read_bytes())


def _of_rank(path: Path) -> Report:
    try:
        report = Report.from_json(path.read_text(encoding="utf-8"))
        if int(report.provenance["rank"]) != int(path.stem.partition("-")[2]):
            raise ValueError("its name has another rank than its content")
        return report
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{path} is no record of a rank: {type(error).__name__}: {error}") from None


def together(reports: list[Report]) -> Look:
    """Merge what each rank said.

    Args:
        reports: One for each rank.
    """
    reports = sorted(reports, key=lambda one: one.provenance["rank"])
    if len({one.provenance.get("run", "") for one in reports}) > 1:
        raise ValueError("the ranks are of different runs: give each run a folder of its own")
    records = []
    for one in reports:
        tables = {name: one.tables[name].astype(types) for name, types in TABLES.items()}
        about = one.provenance
        records.append(Record(tables, about["origin_ns"], one.label, one.notes, clock=about["clock"]))
    every = {part: [one.tables[f"all_{part}"].astype(TABLES[part]) for one in reports] for part in WHOLE}
    every["guards"] = [one.tables["guards"] for one in reports]
    whole = {part: pd.concat(tables, ignore_index=True) for part, tables in every.items()}
    held = {
        part: pd.concat([one.tables[part].astype(types) for one in reports], ignore_index=True)
        for part, types in HELD.items()
    }
    merged = merge(records)
    first = reports[0].provenance
    shown = {key: value for key, value in first.items() if key not in ("rank", "origin_ns", "clock")}
    missing = sorted(set(range(first["world_size"])) - {one.provenance["rank"] for one in reports})
    notes = [*dict.fromkeys(merged.notes), *(f"rank {rank} wrote nothing" for rank in missing)]
    return Look(reports[0].title, merged, whole, shown, notes, missing, held)


def nothing(looked: Look | None, options: Options) -> str:
    """Say why no step was recorded."""
    if looked is None:
        return "the ranks wrote nothing"
    steps, calls = looked.provenance["steps"], looked.provenance["compiled calls"]
    if steps and not looked.provenance["last step ended"]:
        said = f"no optimizer.step ended a step after {calls} compiled calls (is it in compiled code?)"
        return f"{said}: {NAME_A_STEP}"
    if steps > options.skip:
        return f"nothing was recorded of {steps} steps: {'; '.join(looked.notes) or 'they did not end'}"
    if steps:
        return f"there are {steps} steps and the first {options.skip} are skipped: skip fewer of them"
    if options.step:
        return f"{options.step} was never called"
    if calls:
        return f"{calls} compiled calls and no optimizer.step after them: {NAME_A_STEP}"
    return f"the main thread called nothing that torch.compile made: {NAME_A_STEP}"
