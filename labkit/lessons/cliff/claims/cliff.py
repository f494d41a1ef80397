"""The graph-break cliff, at two blocks: counts per forward, and verdicts on the three variants of the source."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from labkit import hardware, lessons
from labkit.graphs import record
from labkit.lessons.cliff import experiment as cliff
from labkit.lessons.shared.timed import all_of, timed, timing_result
from labkit.report import Report
from labkit.study import recorded as recordings
from labkit.study.checks import ENFORCED, HOLDS, Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.timing import interleave
from labkit.torch_compat import dynamo_reset

program = lessons.program("cliff")

BLOCKS = 2
SOURCE_BLOCKS = 40
GPUS = "2 GPUs over NCCL, in a whole pipeline"


@probe
def forwards(bench: Bench) -> Seen:
    """Variants A (eager), B (compiled, disabled) and C (compiled, functional by the gate) on two ranks; a recompile."""
    two, gate = bench.ranks(2, "shm"), {"C": program.gated}
    report = cliff.run(two, BLOCKS, variants="ABC", reduces=gate, rounds=40, host_only=False)
    counts = report.tables["counts"]
    samples = report.tables["samples"].groupby(["variant", "round"])["seconds"].max()
    taken = {letter: tuple(float(s) for s in samples[letter]) for letter in "ABC"}
    found: Seen = {"blocks": BLOCKS}
    for letter in "ABC":
        rows = counts[counts["variant"] == letter].drop(columns=["variant", "blocks"])
        found[letter] = [
            {str(k): _plain(v) for k, v in row.items()} for row in rows.to_dict(orient="records")
        ]
    for a, b in ("CB", "BA"):
        found[a + b] = timed(report.label, taken, a, b)
    largest = report.tables["graphs"].groupby("variant")["ops"].max()
    found["largest"] = {letter: int(largest[letter]) for letter in "BC"}
    return found | {"recompiling": bench.run(_recompiling, ranks=1)[0]}


def _recompiling() -> Seen:
    """A call with a new value of a flag, which compiles again, against one with the value that was compiled."""
    x, run = torch.ones(4), torch.compile(lambda x, flag: x.sin() if flag else x.cos(), backend="eager")

    def anew() -> None:
        dynamo_reset()
        run(x, False)

    calls = {"again": lambda: run(x, True), "known": lambda: run(x, False)}
    taken = {name: one.samples for name, one in interleave(calls, rounds=20, barrier=anew).items()}
    return timed("host only · cpu", taken, "again", "known")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


@probe
def forty(bench: Bench) -> Seen:
    """The breaks of one forward of the source's forty blocks with disabled all-reduces, and with functional ones."""
    return bench.run(_forty, backend="fake")[0]


def _forty() -> Seen:
    return {name: _counted(SOURCE_BLOCKS, getattr(program, name)) for name in ("disabled", "functional")}


def _counted(blocks: int, reduce: Any, change: Callable[[Any], Any] = lambda block: None) -> Seen:
    """What one compiled forward executes, each block of the model changed before."""
    config = program.Config(blocks=blocks)
    model = program.shard(program.full(config), dist.get_rank(), dist.get_world_size(), reduce)
    for block in model.blocks:
        change(block)
    dynamo_reset()
    run, x = torch.compile(model, backend="eager"), config.sample()
    with torch.no_grad():
        run(x)
        with record() as rec:
            run(x)
    row, broken = rec.counts().iloc[0], rec.breaks.query("executed > 0")
    found = {key: int(row[key]) for key in ("regions", "breaks", "at_collective", "collectives", "graphs")}
    return {**found, "largest": int(rec.graphs["ops"].max()), "reasons": sorted(set(broken["reason"]))}


@judging(forty)
def breaks_per_forward(seen: Seen) -> Result:
    """Of forty blocks every disabled collective breaks, as many as claimed; functional ones leave one whole graph."""
    hidden, functional = seen["disabled"], seen["functional"]
    number = re.search(r"\d+", seen["claimed"])
    each = _each_breaks(hidden) and number is not None and hidden["at_collective"] == int(number[0])
    return verdict(
        each and not functional["breaks"] and functional["graphs"] == 1,
        f"{hidden['at_collective']} at {hidden['collectives']} disabled collectives in {SOURCE_BLOCKS} blocks of ours, "
        f"of {hidden['breaks']} breaks in all: each breaks its caller as well; {functional['breaks']} with functional "
        f"ones, in {functional['graphs']} graph",
    )


@judging(forty)
def each_disabled_collective_breaks(seen: Seen) -> Result:
    """A forward breaks at every one of its collectives where they are disabled, at none where they are functional."""
    hidden, functional = seen["disabled"], seen["functional"]
    none = functional["collectives"] == hidden["collectives"] and not functional["breaks"]
    return verdict(
        _each_breaks(hidden) and none,
        f"breaks at {hidden['at_collective']} of {hidden['collectives']} disabled collectives, {functional['breaks']} "
        f"with {functional['collectives']} functional ones",
    )


def _each_breaks(row: Seen) -> bool:
    return 0 < row["collectives"] == row["at_collective"] <= row["breaks"]


@probe
def mixed(bench: Bench) -> Seen:
    """Functional collectives only, with one disabled in each block, and with a print behind each block."""
    return bench.run(_mixed, backend="fake")[0]


def _mixed() -> Seen:
    def escape(block: Any) -> None:
        block.out.reduce = program.disabled

    def prints(block: Any) -> None:
        block.register_forward_hook(lambda *_: print(end=""))

    changes = {"functional": lambda block: None, "escaped": escape, "printing": prints}
    counts = {name: _counted(2 * BLOCKS, program.functional, change) for name, change in changes.items()}
    return {"blocks": 2 * BLOCKS, **counts}


@judging(mixed)
def one_escape_fragments(seen: Seen) -> Result:
    """One disabled all-reduce in a block, among functional ones, breaks every block into pieces far below one graph."""
    pure, escaped, blocks = seen["functional"], seen["escaped"], seen["blocks"]
    whole = pure["regions"] == pure["graphs"] == 1 and not pure["breaks"]
    broken = escaped["at_collective"] == blocks and escaped["regions"] > 2 * blocks
    return verdict(
        whole and broken and 4 * escaped["largest"] < pure["largest"],
        f"{blocks} blocks: {pure['regions']} region of {pure['largest']} operators; with one disabled all-reduce a "
        f"block {escaped['regions']} of at most {escaped['largest']}; {escaped['at_collective']} at a collective break",
    )


@judging(mixed)
def what_remains_has_another_cause(seen: Seen) -> Result:
    """With functional collectives no break is at a collective; what is left names its cause, here a print."""
    pure, printing = seen["functional"], seen["printing"]
    named = bool(printing["reasons"]) and all("print" in reason for reason in printing["reasons"])
    return verdict(
        not pure["breaks"] and printing["breaks"] > 0 and not printing["at_collective"] and named,
        f"{pure['breaks']} breaks; with a print behind each block {printing['breaks']}, of them "
        f"{printing['at_collective']} at a collective: {'; '.join(printing['reasons'])}",
    )


@judging(forwards)
def disabled_is_many_regions(seen: Seen) -> Result:
    """With disabled collectives a forward is many regions, each far below one graph, with Python between them."""
    regions, whole = {row["regions"] for row in seen["B"]}, {row["regions"] for row in seen["C"]}
    breaks = min(row["breaks"] for row in seen["B"])
    small, large = seen["largest"]["B"], seen["largest"]["C"]
    many = min(regions) > 4 * seen["blocks"] <= breaks
    return verdict(
        many and whole == {1} and 4 * small < large,
        f"{' or '.join(map(str, sorted(regions)))} regions a forward of {seen['blocks']} blocks, of at most {small} "
        f"operators, with {breaks} breaks between them; functional: {max(whole)} region of {large}",
    )


@judging(forwards, word=ENFORCED)
def baseline_is_eager(seen: Seen) -> Result:
    """The first variant is eager: its collectives run in place, and nothing of it is compiled."""
    rows, expected = seen["A"], 4 * seen["blocks"]
    ok = all(row["regions"] == 0 and row["graphs"] == 0 and row["collectives"] == expected for row in rows)
    return verdict(
        ok, f"{rows[0]['collectives']} collectives, {rows[0]['regions']} compiled regions a forward"
    )


@judging(forwards)
def functional_is_one_graph(seen: Seen) -> Result:
    """With functional collectives the forward is one graph without a break."""
    rows = seen["C"]
    ok = all(row["graphs"] == 1 and row["breaks"] == 0 and row["regions"] == 1 for row in rows)
    return verdict(ok, f"{rows[0]['graphs']} graph, {rows[0]['breaks']} breaks, {rows[0]['regions']} region")


@judging(forwards)
def functional_takes_the_breaks_away(seen: Seen) -> Result:
    """With disabled collectives blocks of tensor parallelism break at each; with functional ones they are one graph."""
    whole, hidden = functional_is_one_graph(seen), min(row["at_collective"] for row in seen["B"])
    each, sent = 4 * seen["blocks"], [row["collectives"] for row in (*seen["A"], *seen["C"])]
    held = whole.status == HOLDS and hidden == each and {*sent} == {each}
    said = f"{whole.measured}; collectives by rank in eager and compiled: {sent}"
    return verdict(held, f"{said}; with disabled collectives {hidden} breaks at one")


@judging(forwards)
def functional_is_faster_than_disabled(seen: Seen) -> Result:
    """Compiled with functional collectives is faster than compiled with disabled ones."""
    return timing_result(seen["CB"], "faster", GPUS)


@judging(forwards)
def an_increase_is_slower(seen: Seen) -> Result:
    """Where disabled collectives raise the counts of breaks and graphs above those of the same model, it is slower."""
    more, less = seen["B"][0], seen["C"][0]
    counts = "; ".join(f"{name} {less[name]} and {more[name]}" for name in ("breaks", "graphs"))
    if not all(more[name] > less[name] for name in ("breaks", "graphs")):
        return verdict(False, f"no increase: {counts}")
    found = timing_result(seen["CB"], "faster", GPUS)
    return Result(found.status, f"{counts}; with fewer {found.measured}", found.missing)


@judging(forwards)
def breaks_cost_more_than_compiling_saves(seen: Seen) -> Result:
    """Cut into many small regions, compiled code is slower than the same work in one graph, and slower than eager."""
    whole, eager = timing_result(seen["CB"], "faster", GPUS), timing_result(seen["BA"], "slower", GPUS)
    return all_of({"pieces": disabled_is_many_regions(seen), "in one graph": whole, "to eager": eager})


@judging(forwards)
def breaks_and_recompiles_make_cliffs(seen: Seen) -> Result:
    """Without breaks a forward is faster, and a call that compiles again is slower than one that does not."""
    breaks, again = (
        timing_result(seen["CB"], "faster", GPUS),
        timing_result(seen["recompiling"], "slower", GPUS),
    )
    return all_of({"without breaks": breaks, "compiling again": again})


@judging(forwards)
def disabled_is_slower_than_eager(seen: Seen) -> Result:
    """Compiled with disabled collectives is slower than not compiled at all."""
    return timing_result(seen["BA"], "slower", GPUS)


@probe
def recorded(bench: Bench) -> Seen:
    """The recorded cliff, of this machine where there is one: functional and compiled against eager, and its torch.

    At the two blocks of `forwards` a call's fixed cost decides between these two; the source has forty.
    """
    path = recordings.newest("cliff", hardware.slug()) or recordings.newest("cliff")
    if path is None:
        raise FileNotFoundError("no cliff is recorded: `labkit record cliff`")
    report = Report.load(path)
    table = report.tables["verdicts"].query("evidence != 'host only'")
    row, made = table.query("a == 'C' and b == 'A'").iloc[0], report.provenance
    where = f"{row['evidence']}, recorded on {made['hardware']}, {made['date'][:10]}"
    return {
        "blocks": int(made["model"]["blocks"]),
        "torch": made["torch"].partition("+")[0],
        "here": version("torch").partition("+")[0],
        "CA": _verdict(row, where),
        "CB": _verdict(table.query("a == 'C' and b == 'B'").iloc[0], where),
        "BA": _verdict(table.query("a == 'B' and b == 'A'").iloc[0], where),
    }


def _verdict(row: Any, where: str) -> Seen:
    return {key: row[key] for key in ("outcome", "ratio", "low", "high")} | {"label": where}


@judging(recorded)
def recorded_functional_is_faster_than_eager(seen: Seen) -> Result:
    """In the recorded cliff of forty blocks, compiled with functional collectives is faster than eager."""
    return _of_forty(seen, timing_result(seen["CA"], "faster", GPUS))


@judging(recorded)
def recorded_functional_brings_it_back(seen: Seen) -> Result:
    """In the recorded cliff, compiled is slower than eager with disabled ones, and faster with functional ones."""
    ways = {"disabled": ("BA", "slower"), "functional": ("CA", "faster")}
    parts = {name: timing_result(seen[key], word, GPUS) for name, (key, word) in ways.items()}
    return _of_forty(seen, all_of(parts))


@judging(recorded)
def breaks_come_before_kernels(seen: Seen) -> Result:
    """In the recorded cliff, taking the breaks away saves more of a forward than kernels twice as fast would.

    Without breaks the same work takes the time of the functional form, so all kernels together are no more than that.
    """
    row = seen["CB"]
    low, high = ((row[end] if row[end] is not None else none) for end, none in (("low", 0.0), ("high", 9.0)))
    said = f"without its breaks a forward takes {row['ratio']:.0%} of its time: {1 - row['ratio']:.0%} are saved, and "
    said += f"kernels twice as fast would save {row['ratio'] / 2:.0%} at most [{row['label']}]"
    if low < 2 / 3 <= high:
        return _of_forty(seen, cannot_tell("a narrower interval", said))
    return _of_forty(seen, verdict(high < 2 / 3, said))


def _of_forty(seen: Seen, result: Result) -> Result:
    blocks, made, here = seen["blocks"], seen["torch"], seen["here"]
    measured = f"{blocks} blocks, torch {made}: {result.measured}"
    if blocks != SOURCE_BLOCKS or made != here:
        return cannot_tell(
            f"a recording of {SOURCE_BLOCKS} blocks with torch {here}: `labkit record cliff`", measured
        )
    return Result(result.status, measured, result.missing)
