"""The graph-break cliff, at two blocks: counts per forward, and verdicts on the three variants of the source."""

from __future__ import annotations

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
from labkit.study.checks import ENFORCED, Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.timing import interleave
from labkit.torch_compat import dynamo_reset

program = lessons.program("cliff")

BLOCKS = 2
SOURCE_BLOCKS = 40
STEPS = 16  # of a chain without a collective
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
    in_place = bench.run(_inplace)[0]
    alone = {"recompiling": bench.run(_recompiling, ranks=1)[0], "chain": bench.run(_chain, ranks=1)[0]}
    return found | alone | {"in_place": in_place}


def _inplace() -> bool:
    """Whether the first variant's all-reduce gives back the tensor that it was given, which holds the sum."""
    x = torch.ones(2)
    return program.inplace(x) is x and bool((x == dist.get_world_size()).all())


def _chain() -> Seen:
    """The same small steps, without a collective: compiled in pieces, as one graph, and in eager."""
    uncompiled = torch.compiler.disable(lambda x: x)

    def piece(x):
        return uncompiled(torch.relu(x @ x)) + x

    def step(x):
        return torch.relu(x @ x) + x

    dynamo_reset()
    x = torch.zeros(4, 4)
    pieces, whole = torch.compile(piece), torch.compile(lambda x: _repeated(step, x))
    calls = {
        "pieces": lambda: _repeated(pieces, x),
        "one graph": lambda: whole(x),
        "eager": lambda: _repeated(step, x),
    }
    with torch.no_grad():
        taken = {name: one.samples for name, one in interleave(calls, rounds=40, warmup=3).items()}
        with record() as rec:
            calls["pieces"]()
    row = rec.counts().iloc[0]
    found = {
        against: timed("host only · cpu", taken, "pieces", against) for against in ("one graph", "eager")
    }
    return {**found, "regions": int(row["regions"]), "breaks": int(row["breaks"]), "steps": STEPS}


def _repeated(step: Callable[[Any], Any], x: Any) -> Any:
    for _ in range(STEPS):
        x = step(x)
    return x


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
    """A forward breaks at every one of its disabled collectives; with as many functional ones it is one whole graph."""
    hidden, functional = seen["disabled"], seen["functional"]
    none = functional["collectives"] == hidden["collectives"] and not functional["breaks"]
    return verdict(
        _each_breaks(hidden) and none and functional["graphs"] == 1,
        f"breaks at {hidden['at_collective']} of {hidden['collectives']} disabled collectives in {SOURCE_BLOCKS} of "
        f"our blocks, {hidden['breaks']} in all: each breaks its caller as well; {functional['breaks']} with "
        f"{functional['collectives']} functional ones, in {functional['graphs']} graph",
    )


def _each_breaks(row: Seen) -> bool:
    return 0 < row["collectives"] == row["at_collective"] <= row["breaks"]


@probe
def mixed(bench: Bench) -> Seen:
    """Functional collectives only, with one disabled in all, with one in each block, with a print behind each block."""
    return bench.run(_mixed, backend="fake")[0]


def _mixed() -> Seen:
    def escape(block: Any) -> None:
        block.out.reduce = program.disabled

    def prints(block: Any) -> None:
        block.register_forward_hook(lambda *_: print(end=""))

    def once(block: Any) -> None:
        if not changed:
            escape(block)
            changed.append(block)

    changed: list[Any] = []
    changes = {"functional": lambda block: None, "once": once, "escaped": escape, "printing": prints}
    counts = {name: _counted(2 * BLOCKS, program.functional, change) for name, change in changes.items()}
    return {"blocks": 2 * BLOCKS, **counts}


@judging(mixed)
def one_escape_fragments(seen: Seen) -> Result:
    """One disabled all-reduce, in all or in each block, among functional ones leaves pieces far below one graph."""
    pure, ways, blocks = (
        seen["functional"],
        {"in all": seen["once"], "a block": seen["escaped"]},
        seen["blocks"],
    )
    whole = pure["regions"] == pure["graphs"] == 1 and not pure["breaks"]
    broken = [way["at_collective"] for way in ways.values()] == [1, blocks]
    pieces = all(
        way["regions"] > 2 * blocks and 4 * way["largest"] < pure["largest"] for way in ways.values()
    )
    said = ", ".join(
        f"{name} {way['regions']} of at most {way['largest']} ({way['at_collective']} at a collective break)"
        for name, way in ways.items()
    )
    return verdict(
        whole and broken and pieces,
        f"{blocks} blocks: {pure['regions']} region of {pure['largest']} operators; one disabled collective {said}",
    )


@judging(mixed)
def what_remains_has_another_cause(seen: Seen) -> Result:
    """With functional collectives no break is at a collective, but with a disabled one; a print's break names it."""
    pure, printing, at = seen["functional"], seen["printing"], seen["escaped"]["at_collective"]
    named = bool(printing["reasons"]) and all("print" in reason for reason in printing["reasons"])
    return verdict(
        not pure["breaks"] and printing["breaks"] > 0 == printing["at_collective"] and at > 0 and named,
        f"{pure['breaks']} breaks; with a print behind each block {printing['breaks']}, of them "
        f"{printing['at_collective']} at a collective: {'; '.join(printing['reasons'])}; with a disabled one {at}",
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
    said = f"{rows[0]['collectives']} collectives, {rows[0]['regions']} compiled regions a forward; an all-reduce "
    return verdict(ok and seen["in_place"], said + ("in place" if seen["in_place"] else "not in place"))


@judging(forwards)
def functional_takes_the_breaks_away(seen: Seen) -> Result:
    """Functional collectives leave blocks one large graph with all of them; with disabled ones they break at each."""
    rows, hidden, each = seen["C"], min(row["at_collective"] for row in seen["B"]), 4 * seen["blocks"]
    whole = all(row["graphs"] == row["regions"] == 1 and row["breaks"] == 0 for row in rows)
    there = all(row["collectives"] == each for row in (*seen["A"], *rows))
    small, large = seen["largest"]["B"], seen["largest"]["C"]
    return verdict(
        whole and there and hidden == each and 4 * small < large,
        f"{rows[0]['graphs']} graph of {large} operators, {rows[0]['breaks']} breaks, {rows[0]['collectives']} "
        f"collectives in {rows[0]['regions']} region; disabled ones: {hidden} breaks at one, graphs of at most {small}",
    )


@judging(forwards)
def functional_is_faster_than_disabled(seen: Seen) -> Result:
    """Compiled with functional collectives is faster than compiled with disabled ones."""
    return timing_result(seen["CB"], "faster", GPUS)


@judging(forwards)
def an_increase_is_slower(seen: Seen) -> Result:
    """A forward with more breaks and graphs is slower; so are breaks alone, and a call that makes one more graph."""
    more, less = seen["B"][0], seen["C"][0]
    counts = "; ".join(f"{name} {less[name]} and {more[name]}" for name in ("breaks", "graphs"))
    if not all(more[name] > less[name] for name in ("breaks", "graphs")):
        return verdict(False, f"no increase: {counts}")
    fewer = timing_result(seen["CB"], "faster", GPUS)
    graph = timing_result(seen["recompiling"], "slower", "any machine")
    return all_of(
        {f"{counts}; with fewer": fewer, "breaks alone": _breaks_alone(seen), "one more graph": graph}
    )


def _breaks_alone(seen: Seen) -> Result:
    """Of steps that differ in breaks alone, whether those with breaks are slower than one graph."""
    chain = seen["chain"]
    if chain["breaks"] < chain["steps"] or chain["regions"] < 2 * chain["steps"]:
        return verdict(
            False, f"{chain['breaks']} breaks, {chain['regions']} regions in {chain['steps']} steps"
        )
    return timing_result(chain["one graph"], "slower", "any machine")


@judging(forwards)
def breaks_cost_more_than_compiling_saves(seen: Seen) -> Result:
    """Cut into many small regions, compiled code is slower than the same work in one graph, and slower than eager."""
    whole, eager = timing_result(seen["CB"], "faster", GPUS), timing_result(seen["BA"], "slower", GPUS)
    return all_of({"pieces": disabled_is_many_regions(seen), "in one graph": whole, "to eager": eager})


@judging(forwards)
def breaks_dominate(seen: Seen) -> Result:
    """In a forward breaks cost more than compiling saves; of tiny graphs in a row most of the time is theirs."""
    chain = seen["chain"]
    alone, eager = _breaks_alone(seen), timing_result(chain["eager"], "slower", "any machine")
    low, high = (chain["one graph"][end] for end in ("low", "high"))
    said = f"{chain['regions']} tiny graphs: {alone.measured} against one graph"
    most = (
        verdict((low or 0) > 2, said) if low and (low > 2 or (high or 3) <= 2) else cannot_tell("quiet", said)
    )
    parts = {
        "forward": breaks_cost_more_than_compiling_saves(seen),
        "breaks alone": alone,
        "most of it": most,
    }
    return all_of({**parts, "to eager": eager})


@judging(forwards)
def breaks_and_recompiles_make_cliffs(seen: Seen) -> Result:
    """Without breaks a forward is faster, and steps without a collective are; a call that compiles again is slower."""
    breaks, again = (
        timing_result(seen["CB"], "faster", GPUS),
        timing_result(seen["recompiling"], "slower", GPUS),
    )
    return all_of({"without breaks": breaks, "breaks alone": _breaks_alone(seen), "compiling again": again})


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
