"""What ranks recorded of a program: their tables merged, what each graph break costs at most, and how ranks differ."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from oddrank.counted import counted
from oddrank.files import write
from oddrank.look import (
    callables,
    checkpoints,
    costs,
    crossed,
    entering,
    epochs,
    forwards,
    gradients,
    journal,
    program_source,
    replicas,
    rescaled,
    rows,
    schedules,
    step_collectives,
    switch_effects,
    trained,
    training,
    uncompiled,
    weight_names,
)
from oddrank.look.breaks import Again, Break, again_of, breaks_of
from oddrank.look.finding import Finding
from oddrank.look.graphs import other_numbers, without_sizes
from oddrank.look.owners import library_of, owner_of
from oddrank.look.steps import Options
from oddrank.places import place
from oddrank.record import Compile, Count, Tables, first_difference, merge
from oddrank.record.guard_words import form, words
from oddrank.record.tables import POINT_TO_POINT
from oddrank.record.timeline import collective_op, marked, point_to_point
from oddrank.report import Report
from oddrank.source import AnnotatedSource
from oddrank.stages import diff

__all__ = ["Look", "gather", "nothing", "read", "together"]

TEXTS = dict.fromkeys(["rank", "compile", "name", "code", "guards"], "str") | {"rank": "int64"}
HELD = {"replicas": replicas.TYPES, "calls": step_collectives.TYPES, "gradients": gradients.TYPES}
HELD |= {"names": weight_names.TYPES, "texts": TEXTS, "asked": callables.TYPES}
HELD |= {"parameters": training.PARAMETERS, "averages": training.AVERAGES, "seen": training.SEEN}
HELD |= {"effects": switch_effects.TYPES, "loads": checkpoints.TYPES, "sources": program_source.TYPES}
HELD |= {"around": uncompiled.TYPES, "crossed": crossed.TYPES, "forwards": forwards.TYPES}
HELD |= {"rescaled": rescaled.TYPES, "entering": entering.TYPES, "epochs": epochs.TYPES}
HELD |= {"schedules": schedules.TYPES}
TIMES = ("recorded steps, ms", "later steps, ms")  # lists of each rank
RECORDED = "recorded steps"  # how many
FIRST = "first step, ms"  # the same, of one step at most
LEAST, LEAST_LATER = 3, 5  # recorded steps, and steps after them, for a factor
WHOLE = ("compiles", "marks")
OTHER_VERSION = "another version of oddrank wrote it; run the script again with this one"
COMPARED = (
    "regions, breaks and collectives of each recorded step in their order; graphs and counts of the whole run"
)
NUMBERS_ONLY = "only numbers differ"
COMPARED_CUT = "regions, breaks and collectives of each recorded step, as far as the shorter rank came"
STAGED = (
    "ranks send each other messages in other orders, as the stages of a pipeline do: what they run and compile differs"
    " by design, and was not compared"
)
NAME_A_STEP = "give the function that is a step with --step, in a notebook with step="
COUNTS = ["regions", "breaks", "frames given up", "graphs", "recompiles", "collectives"]


@dataclass
class Look:
    """The records of all ranks of one program.

    Args:
        name: Of the program.
        record: The steps of all ranks.
        whole: What was compiled in the whole run.
        provenance: Of rank 0.
        notes: What a reader has to know about gaps.
        missing: Ranks that wrote nothing.
        held: What ranks wrote besides, by name, as tables of `HELD`: what they held after the last recorded step,
            `replicas`, the `calls` of these steps, the `texts` of graphs and guards.
        failed: Whether the program failed after the recorded steps.
        cut: Ranks that failed in the last step they recorded, which is shorter for them than it would have been.
        lines: The same as `whole` with operators, runs and what ran and was compiled before: for the annotated source.
    """

    name: str
    record: Tables
    whole: Tables
    provenance: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    held: dict[str, pd.DataFrame] = field(default_factory=dict)
    failed: bool = False
    cut: list[int] = field(default_factory=list)
    lines: Tables = field(default_factory=Tables)

    @property
    def unit(self) -> str:
        """What was marked: 'step' or 'forward'."""
        return marked(one.name for one in self.record.ranges)

    @property
    def steps(self) -> int:
        """Number of steps that every rank recorded."""
        return min(self.record.profiled.values(), default=0)

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted({row.rank for row in self.compiled}) or self.record.ranks

    @functools.cached_property
    def compiled(self) -> list[Compile]:
        """What was compiled in the whole run and has code."""
        return [row for row in self.whole.compiles if row.outcome in ("graph", "empty")]

    @functools.cached_property
    def met(self) -> list[Break]:
        """Every graph break and frame given up that was compiled in the whole run."""
        return breaks_of(self.whole)

    @functools.cached_property
    def again(self) -> list[Again]:
        """Every recompile of the whole run."""
        return again_of(self.whole)

    @property
    def counts(self) -> pd.DataFrame:
        """Count, one row for each rank: regions, breaks and collectives per step; the others in the whole run."""
        found, run = [], {row.rank: row for row in self.whole.counts}
        for row in self.record.counts:
            if row.rank in self.record.profiled:
                whole = run.get(row.rank, Count(row.rank))
                compiled = (whole.gave_up, whole.graphs, whole.recompiles)
                found.append((row.rank, row.regions, row.breaks, *compiled, row.collectives))
        return pd.DataFrame(found, columns=["rank", *COUNTS])

    @property
    def collectives(self) -> pd.DataFrame:
        """Count each rank's collectives per step, by operation and place, in the order of the first call."""
        calls = [row for row in self.record.collectives if row.name not in POINT_TO_POINT]
        counted = [
            (row.rank, row.name, place(row.file, row.line or None, row.func), row.runs) for row in calls
        ]
        return self._per_step(counted, ["operation", "place"])

    def regions(self) -> pd.DataFrame:
        """Count how often each rank ran each compiled region per step, in the order of their compiles."""
        ran = [(row.rank, row.name, row.place, row.runs) for row in self.record.compiles if row.runs]
        return self._per_step(ran, ["name", "place"])

    def _per_step(self, counted: Sequence[tuple[Any, ...]], by: list[str]) -> pd.DataFrame:
        """A row for each pair of texts, a column for each rank, from rows of rank, both texts and a count."""
        rows = pd.DataFrame(counted, columns=["rank", *by, "runs"])
        sized = rows.groupby([*by, "rank"], sort=False)["runs"].sum().div(max(self.steps, 1)).unstack("rank")
        sized = sized.reindex(columns=self.ranks).fillna(0)
        return sized.rename(columns=lambda rank: f"rank {rank}").reset_index().rename_axis(columns=None)

    @functools.cached_property
    def breaks(self) -> pd.DataFrame:
        """The executed graph breaks, those that cost most first.

        Returns:
            Columns reason, place, one for each rank with the executions per step, `outside_ms` (the time outside of
            compiled regions around the break per step, on the rank where it is longest: an upper bound of its cost),
            `share` of that rank's step, explanation, hints, `owner` (the part of torch whose own break it is, or '')
            and `library` (the library's line where torch stopped). Times are missing where operators were not recorded.
        """
        executed, ms = costs.around_breaks(self.record)
        table = self._per_step(
            [(row.rank, row.reason, row.place, count) for row, count in executed], ["reason", "place"]
        )
        took = self._took
        known = {(row.reason, row.place): row for row, _ in reversed(executed)}
        for i, row in table.iterrows():
            key = (row["reason"], row["place"])
            outside, share = max(
                ((each, each / took[rank] if took[rank] else 0.0) for rank, each in ms.get(key, {}).items()),
                default=(float("nan"), float("nan")),
            )
            one = known[key]
            table.loc[i, ["outside_ms", "share"]] = outside, share
            table.loc[i, ["explanation", "hints"]] = one.explanation, "\n".join(one.hints)
            table.loc[i, ["owner", "library"]] = owner_of(one), library_of(one)
        return table.sort_values("outside_ms", ascending=False, ignore_index=True) if len(table) else table

    @functools.cached_property
    def _took(self) -> dict[int, float]:
        """The mean duration of a recorded step on each rank, in ms, without compiling."""
        each = pd.Series(costs.durations(self.record), dtype="float64")
        return each.groupby(level=0).mean().to_dict() if len(each) else {}

    def cost(self, row: Any) -> str:
        """Return in words what a row of `breaks` costs at most."""
        if pd.isna(row.outside_ms):
            return f"an unknown part of a {self.unit} (operators were not recorded)"
        return f"at most {row.outside_ms:.2f} ms of a {self.unit} ({row.share:.0%})"

    def duration_ms(self) -> float:
        """Return the mean duration of a recorded step, in ms: on the slowest rank, without compiling."""
        return max(self._took.values(), default=float("nan"))

    # --- ranks ---

    def apart(self) -> str:
        """Return where ranks did different things or ran different graphs, in one sentence; '' if nowhere."""
        return self._apart

    @functools.cached_property
    def _apart(self) -> str:
        return ("" if self.staged else self._ran_apart) or next(iter(self.unequal()), "")

    @functools.cached_property
    def _ran_apart(self) -> str:
        """Where ranks ran or compiled different things; '' if nowhere."""
        first = first_difference(self.record)
        ended = [rank for rank, step in first.steps.items() if step is None] if first else []
        if first is not None and not (set(ended) & set(self.cut) and first.forward == self.steps - 1):
            return f"in {self.unit} {first.forward}, {str(first).partition(': ')[2]}"
        if self.cut:  # counts and compiles are of a part of the last step
            return ""
        counts = self.counts.set_index("rank")
        for name in ("recompiles", *COUNTS):  # of a recompile the guard is known
            if counts[name].nunique() > 1:
                said = ", ".join(f"{value:g} on rank {rank}" for rank, value in counts[name].items())
                why = self._only_on() if name == "recompiles" else ""
                return f"{name}: {said}{why}"
        for title, compared in self.differing("dynamo"):
            if title not in self.resized():
                among = " and ".join(compared.names)
                told = self._renumbered.get(title) or counted(compared.different, "lines differ")
                return f"the graph of {title}: {told} between {among}"
        for title, ranks in self.partial():
            return f"{title} was compiled on rank {ranks} only"
        return ""

    @functools.cached_property
    def _renumbered(self) -> dict[str, str]:
        """The titles of compiles whose graphs differ in numbers only that are no sizes, and which numbers, in words."""
        found = {}
        for title in dict.fromkeys(title for title, _ in self.differing("dynamo")):
            if apart := other_numbers(self._codes(title)):
                shown = ", ".join(" and ".join(each) for each in apart[:3])
                found[title] = f"{NUMBERS_ONLY} ({shown}{', ...' if len(apart) > 3 else ''})"
        return found

    def _codes(self, title: str) -> list[str]:
        """The code of a compile on each rank, by its title."""
        table = self.held["texts"]
        return list(table[table["compile"].add(" ").add(table["name"]) == title]["code"])

    def unequal(self) -> list[str]:
        """Describe what ranks sent or hold otherwise, though they may have done the same."""
        held = replicas.wrong(self.held["replicas"], self._exchanges, self._of_gradients)
        return [*step_collectives.differing(self.held["calls"]), *held, *(one.said for one in self.gradients)]

    @functools.cached_property
    def gradients(self) -> list[Finding]:
        """The gradients that torch takes for replicated and that differ between ranks."""
        return gradients.wrong(self.held["gradients"])

    def _of_gradients(self, names: list[str]) -> list[str]:
        return gradients.reasons(self.held["gradients"], names)

    @property
    def _exchanges(self) -> bool:
        """Whether ranks exchange data, as experts and stages do: what a rank holds for itself may differ then."""
        called = {one.name for one in self.record.ranges if one.kind == "collective"}
        return any("alltoall" in name.replace("_", "") or point_to_point(name) for name in called)

    @functools.cached_property
    def staged(self) -> bool:
        """Whether ranks differ in what they ran, and send each other messages as the stages of a pipeline do."""
        called = [one for one in self.record.ranges if one.kind == "collective"]
        sent = [(one.rank, collective_op(one.name)) for one in called if point_to_point(one.name)]
        if not sent or not self._ran_apart:
            return False
        # the first stage sends first; in a ring every rank does the same
        orders = {tuple(name for who, name in sent if who == rank) for rank in self.ranks}
        return bool(self.provenance.get("pipeline")) or len(orders) > 1

    def verdict(self) -> str:
        """Return in one sentence whether ranks differ."""
        ranks = ", ".join(map(str, self.ranks))
        if self.missing:
            rest = f"; ranks {ranks} differ: {self.apart()}" if self.apart() else ""
            return f"not compared: rank {', '.join(map(str, self.missing))}, which wrote nothing{rest}"
        if len(self.ranks) < 2:
            return "one rank: nothing to compare"
        if self.apart():
            return f"ranks differ: {self.apart()}"
        if self.staged:
            return f"{STAGED}; the rest does not differ" if self.compared() else STAGED
        when = f"in the {self.unit}s before the failure " if self.failed else ""
        return f"{when}ranks did not differ in what was compared"

    def compared(self) -> list[str]:
        """List what was compared between ranks, with the counts of what they hold and send."""
        held = replicas.compared(self.held["replicas"], self._exchanges, self._of_gradients).values()
        ran = "" if self.staged else COMPARED_CUT if self.cut else COMPARED
        taken = gradients.compared(self.held["gradients"])
        sizes = f"graphs that differ in sizes only: {', '.join(self.resized())}" if self.resized() else ""
        return [*filter(None, [ran, sizes, step_collectives.compared(self.held["calls"]), taken]), *held]

    def allowed(self) -> list[str]:
        """Describe what ranks hold otherwise and may."""
        return replicas.allowed(self.held["replicas"], self._exchanges, self._of_gradients)

    def messages(self) -> str:
        """Say how many messages between two ranks each rank sent and received a step, which no count has."""
        sent = Counter(
            one.rank for one in self.record.ranges if one.kind == "collective" and point_to_point(one.name)
        )
        each = ", ".join(
            f"{round(sent[rank] / max(self.steps, 1), 2):g} on rank {rank}" for rank in self.ranks
        )
        return f"sends and receives per {self.unit}, beside collectives: {each}" if sent else ""

    def partial(self) -> list[tuple[str, str]]:
        """Return what only some of the ranks compiled: its title, and these ranks."""
        there: dict[str, set[int]] = {}
        for row in self.compiled:
            there.setdefault(f"{row.id} {row.name}", set()).add(row.rank)
        return [
            (title, ", ".join(map(str, sorted(ranks))))
            for title, ranks in there.items()
            if len(ranks) < len(self.ranks)
        ]

    @functools.cached_property
    def source(self) -> AnnotatedSource:
        """The program's source, and what each rank did at each line."""
        version, ran = str(self.provenance.get("torch", "")), self.record
        lines = replace(self.lines, torch=version, collectives=ran.collectives, profiled=ran.profiled)
        return program_source.annotated(
            lines, self.held["sources"], self.held["around"], self.held["forwards"]
        )

    def guard_of(self, name: str, rank: int) -> str:
        """Return in words why a rank compiled a function again, with the guard itself."""
        reasons = [row.reason for row in self.again if (row.name, row.rank) == (name, rank)]
        texts = self.held["texts"]
        guards = texts[(texts["name"] == name) & (texts["rank"] == rank)]["guards"]
        last = str(guards.iloc[-1]) if len(guards) else ""
        told: dict[str, str] = {}
        for i, reason in enumerate(reasons):
            told.setdefault(form(reason), words(reason, reasons[i + 1 :], last))
        return "; ".join(list(told.values())[:3]) + ("; ..." if len(told) > 3 else "")

    def _only_on(self) -> str:
        """Say which functions were compiled again more often on one rank than on another, and why."""
        counts = Counter((row.name, row.rank) for row in self.again)
        for name in sorted({name for name, _ in counts}):
            if len({counts[name, rank] for rank in self.ranks}) > 1:
                rank = max(self.ranks, key=lambda rank: counts[name, rank])
                return f" (rank {rank} compiled {name} again: {self.guard_of(name, rank)})"
        return ""

    def resized(self) -> list[str]:
        """Return the titles of compiles whose graphs differ in the sizes of tensors only, as with uneven shards."""
        return self._resized

    @functools.cached_property
    def _resized(self) -> list[str]:
        titles = dict.fromkeys(title for title, _ in self.differing("dynamo"))
        return [title for title in titles if len(set(map(without_sizes, self._codes(title)))) == 1]

    def differing(self, stage: str) -> list[tuple[str, Any]]:
        """Compare what rank 0 compiled with what every other rank did.

        Args:
            stage: 'dynamo' for graphs, or 'guards'.

        Returns:
            For each compile whose text differs, its title and the `Diff`.
        """
        table, text = self.held["texts"], "code" if stage == "dynamo" else "guards"
        if len(self.ranks) < 2:  # also where nothing was compiled, and no step recorded
            return []
        first, found = self.ranks[0], []
        mine = table[table["rank"] == first].set_index("compile")
        for rank in self.ranks[1:]:
            theirs = table[table["rank"] == rank].set_index("compile")
            for id_ in [i for i in mine.index if i in theirs.index]:
                a, b = mine.loc[id_], theirs.loc[id_]
                if a["name"] == b["name"] and a[text] != b[text] and a[text] and b[text]:
                    compared = diff(a[text], b[text], stage, (f"rank {first}", f"rank {rank}"))
                    if not compared.same:
                        found.append((f"{id_} {a['name']}", compared))
        return found

    # --- as a report ---

    def report(self, name: str = "look") -> Report:
        """Return everything as one Report."""
        whole = rows.frames(self.lines, operators=True)
        tables = {"summary": self.counts, "costly": self.breaks, **rows.frames(self.record)}
        tables |= {"breaks": self.record.breaks.frame(), "counts": self.record.counts.frame()}
        tables |= {f"all_{part}": whole[part] for part in WHOLE} | self.held
        verdicts = [self.verdict()]
        title = f"{self.name}: {counted(self.steps, f'{self.unit}s')} of {counted(len(self.ranks), 'ranks')}"
        return Report(name, title, self.record.label, tables, verdicts, self.provenance, self.notes)


def read(folder: Path) -> Look | None:
    """Read what ranks have written to a folder; None where they wrote nothing.

    Raises:
        ValueError: A file is no record of a rank, or the ranks are of different runs.
    """
    paths = sorted(folder.glob("rank-*.json"))
    if not paths:
        return None
    looked = together([_of_rank(path) for path in paths])
    looked.whole, looked.lines = (journal.complete(one, folder) for one in (looked.whole, looked.lines))
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
            write(into / path.name, path.read_bytes())


def _of_rank(path: Path) -> Report:
    try:
        report = Report.from_json(path.read_text(encoding="utf-8"))
        _complete(report)
        if int(report.provenance["rank"]) != int(path.stem.partition("-")[2]):
            raise ValueError("its name has another rank than its content")
        return report
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{path} is no record of a rank: {type(error).__name__}: {error}") from None


def _complete(report: Report) -> None:
    """Refuse a record that lacks a table or a column, as one of another version of oddrank may."""
    parts = {name: rows.columns(name) for name in rows.KEPT}
    parts |= {f"all_{part}": parts[part] for part in WHOLE}
    for name, columns in (parts | HELD).items():
        if name not in report.tables:
            raise ValueError(f"it lacks the table {name}: {OTHER_VERSION}")
        if lacking := [column for column in columns if column not in report.tables[name]]:
            raise ValueError(f"its table {name} lacks {', '.join(lacking)}: {OTHER_VERSION}")


def together(reports: list[Report]) -> Look:
    """Merge what each rank said.

    Args:
        reports: One for each rank.
    """
    reports = sorted(reports, key=lambda one: one.provenance["rank"])
    if len({one.provenance.get("run", "") for one in reports}) > 1:
        raise ValueError("the ranks are of different runs: give each run a folder of its own")
    records, compiled = [], []
    for one in reports:
        about, rank = one.provenance, int(one.provenance["rank"])
        profiled = {rank: int(about[RECORDED])} if about[RECORDED] else {}
        times = {"origin_ns": about["origin_ns"], "clock": about["clock"]}
        records.append(rows.tables(one.tables, label=one.label, notes=one.notes, profiled=profiled, **times))
        compiled.append(rows.tables({part: one.tables[f"all_{part}"] for part in WHOLE}))
    held = {
        part: pd.concat([one.tables[part].astype(types) for one in reports], ignore_index=True)
        for part, types in HELD.items()
    }
    merged, lines = merge(records), merge(compiled)
    whole = _of_run(lines)
    first = reports[0].provenance
    shown = {key: value for key, value in first.items() if key not in ("rank", "origin_ns", "clock", *TIMES)}
    shown[FIRST] = [round(ms) for one in reports for ms in one.provenance.get(FIRST, [])]
    missing = sorted(set(range(first["world_size"])) - {one.provenance["rank"] for one in reports})
    # what may be wrong first, then what is missing
    notes = [*trained.drawn_alike(held["seen"]), *schedules.hurried(held["schedules"])]
    notes += [f"rank {rank} wrote nothing" for rank in missing]
    cut = [
        one.provenance["rank"]
        for one in reports
        if one.provenance[RECORDED] and not one.provenance.get("last step ended", True)
    ]
    if cut:
        who = f"rank {' and '.join(map(str, cut))}"
        notes.append(f"{who} did not end the last recorded step: counts are of what ran of it, too")
    notes += [*dict.fromkeys(merged.notes), *_factor([one.provenance for one in reports])]
    _take_for_alike(merged, Look("", merged, whole, shown, held=held))
    return Look(reports[0].title, merged, whole, shown, notes, missing, held, cut=cut, lines=lines)


def _of_run(lines: Tables) -> Tables:
    """What was compiled in the run, without what was compiled before and only ran in it."""
    mine = [row for row in lines.compiles if row.during or row.outcome == "gave-up"]
    known = {(row.rank, row.id) for row in mine}
    found = Tables()
    found.compiles += (replace(row, runs=None) for row in mine)
    found.marks += (m for m in lines.marks if (m.rank, m.compile) in known and m.kind not in rows.LEFT_OUT)
    return found


def _take_for_alike(record: Tables, looked: Look) -> None:
    """Let a compile whose graphs differ in sizes or numbers only be the same region on all ranks of a record."""
    alike = {*looked.resized(), *looked._renumbered}
    for row in record.compiles:
        if (title := f"{row.id} {row.name}") in alike:
            row.digest = title


def _factor(about: list[dict[str, Any]]) -> list[str]:
    """Say how much longer recorded steps took than those after them; [] unless each took longer than all of these."""
    taken = [[facts.get(times, []) for facts in about] for times in TIMES]
    recorded, later = (
        [max(of) for of in zip(*ranks, strict=False)] for ranks in taken
    )  # of the slowest rank
    if len(recorded) < LEAST or len(later) < LEAST_LATER or min(recorded) <= max(later):
        return []
    was, is_ = statistics.median(recorded), statistics.median(later)
    return [f"a recorded step took {was / is_:.2f} times as long as one after it: {was:.2f} ms, the median of"
            f" {len(recorded)}, against {is_:.2f} ms, the median of {len(later)}"]  # fmt: skip


def nothing(looked: Look | None, options: Options) -> str:
    """Say why no step was recorded."""
    if looked is None:
        return "the ranks wrote nothing"
    steps, calls = looked.provenance["steps"], looked.provenance["compiled calls"]
    if steps and not looked.provenance["last step ended"]:
        said = f"no optimizer.step ended a step after {counted(calls, 'compiled calls')} (is it in compiled code?)"
        return f"{said}: {NAME_A_STEP}"
    if steps > options.skip:
        return f"nothing was recorded of {counted(steps, 'steps')}: {'; '.join(looked.notes) or 'they did not end'}"
    if steps:
        return f"{counted(steps, 'steps were')} found and the first {options.skip} are skipped: skip fewer of them"
    if options.step:
        return f"{options.step} was never called"
    if calls:
        return f"{counted(calls, 'compiled calls')} and no optimizer.step after them: {NAME_A_STEP}"
    return f"the main thread called nothing that torch.compile made: {NAME_A_STEP}"
