"""The graph-break cliff, at two blocks: counts per forward, and verdicts on the three variants of the source."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from labkit import hardware, lessons
from labkit.graphs import record
from labkit.lessons.cliff import experiment as cliff
from labkit.lessons.shared.timed import timed, timing_result
from labkit.report import Report
from labkit.study import recorded as recordings
from labkit.study.checks import ENFORCED, HOLDS, Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset

program = lessons.program("cliff")

BLOCKS = 2
SOURCE_BLOCKS = 40
GPUS = "2 GPUs over NCCL, in a whole pipeline"


@probe
def forwards(bench: Bench) -> Seen:
    """The cliff's variants A (eager), B (compiled, disabled) and C (compiled, functional) on two shm ranks."""
    report = cliff.run(
        bench.ranks(2, "shm"), blocks=BLOCKS, variants="ABC", rounds=40, host_only=False, talk=False
    )
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
    return found


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


@probe
def forty(bench: Bench) -> Seen:
    """The breaks of one forward of the source's forty blocks with disabled all-reduces, and with functional ones."""
    return bench.run(_forty, backend="fake")[0]


def _forty() -> Seen:
    config = program.Config(blocks=SOURCE_BLOCKS)
    whole, x, found = program.full(config), config.sample(), Seen()
    for name in ("disabled", "functional"):
        model = program.shard(whole, dist.get_rank(), dist.get_world_size(), getattr(program, name))
        dynamo_reset()
        run = torch.compile(model, backend="eager")
        with torch.no_grad():
            run(x)
            with record() as rec:
                run(x)
        row = rec.counts().iloc[0]
        found[name] = {key: int(row[key]) for key in ("breaks", "at_collective", "collectives")}
    return found


@judging(forty)
def breaks_per_forward(seen: Seen) -> Result:
    """A forward of forty blocks breaks at as many disabled collectives as claimed, and at none that is functional."""
    hidden, functional = seen["disabled"], seen["functional"]
    number = re.search(r"\d+", seen["claimed"])
    return verdict(
        number is not None and hidden["at_collective"] == int(number[0]) and not functional["at_collective"],
        f"{hidden['at_collective']} at a disabled collective in {SOURCE_BLOCKS} blocks, of {hidden['breaks']} breaks "
        f"in all: each breaks its caller as well; {functional['at_collective']} with functional ones",
    )


@judging(forwards)
def disabled_is_many_regions(seen: Seen) -> Result:
    """With disabled collectives a forward is many small compiled regions."""
    regions = {row["regions"] for row in seen["B"]}
    return verdict(
        min(regions) > 4 * seen["blocks"],
        f"{' or '.join(map(str, sorted(regions)))} regions a forward of {seen['blocks']} blocks",
    )


@judging(forwards)
def no_collective_fragments(seen: Seen) -> Result:
    """With functional collectives no break is at a collective; what is left has another cause, which is counted."""
    rows = seen["C"]
    others = max(row["breaks"] - row["at_collective"] for row in rows)
    at = max(row["at_collective"] for row in rows)
    return verdict(at == 0, f"{at} breaks at a collective, {others} others")


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
    """With disabled collectives tensor-parallel blocks break at each, with functional ones they are one graph."""
    whole, hidden = functional_is_one_graph(seen), min(row["at_collective"] for row in seen["B"])
    held = whole.status == HOLDS and hidden == 4 * seen["blocks"]
    return verdict(held, f"{whole.measured}; with disabled collectives {hidden} breaks at one")


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
    }


def _verdict(row: Any, where: str) -> Seen:
    return {key: row[key] for key in ("outcome", "ratio", "low", "high")} | {"label": where}


@judging(recorded)
def recorded_functional_is_faster_than_eager(seen: Seen) -> Result:
    """In the recorded cliff of forty blocks, compiled with functional collectives is faster than eager."""
    return _of_forty(seen, timing_result(seen["CA"], "faster", GPUS))


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
