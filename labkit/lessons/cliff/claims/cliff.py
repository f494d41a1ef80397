"""The graph-break cliff, at two blocks: counts per forward, and verdicts on the three variants of the source."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from labkit import hardware
from labkit.lessons.cliff import experiment as cliff
from labkit.lessons.shared.timed import timed, timing_result
from labkit.report import Report
from labkit.study import recorded as recordings
from labkit.study.checks import ENFORCED, Bench, Result, Seen, cannot_tell, judging, probe, verdict

BLOCKS = 2
SOURCE_BLOCKS = 40  # four collectives a block are the source's ~160
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


@judging(forwards)
def breaks_per_forward(seen: Seen) -> Result:
    """Every disabled all-reduce is a break of every forward: four in each block, 160 in forty blocks."""
    rows, blocks = seen["B"], seen["blocks"]
    at = {row["at_collective"] for row in rows}
    return verdict(
        at == {4 * blocks},
        f"{' or '.join(map(str, sorted(at)))} at a collective in {blocks} blocks, so "
        f"{' or '.join(str(int(n / blocks * SOURCE_BLOCKS)) for n in sorted(at))} in {SOURCE_BLOCKS}",
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
def functional_is_faster_than_disabled(seen: Seen) -> Result:
    """Compiled with functional collectives is faster than compiled with disabled ones."""
    return timing_result(seen["CB"], "faster", GPUS)


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
    rows = report.tables["verdicts"].query("a == 'C' and b == 'A' and evidence != 'host only'")
    row, made = rows.iloc[0], report.provenance
    where = f"{row['evidence']}, recorded on {made['hardware']}, {made['date'][:10]}"
    return {
        "blocks": int(made["model"]["blocks"]),
        "torch": made["torch"].partition("+")[0],
        "here": version("torch").partition("+")[0],
        "CA": {"outcome": str(row["outcome"]), "ratio": float(row["ratio"]), "label": where},
    }


@judging(recorded)
def recorded_functional_is_faster_than_eager(seen: Seen) -> Result:
    """In the recorded cliff of forty blocks, compiled with functional collectives is faster than eager."""
    blocks, made, here = seen["blocks"], seen["torch"], seen["here"]
    result = timing_result(seen["CA"], "faster", GPUS)
    measured = f"{blocks} blocks, torch {made}: {result.measured}"
    if blocks != SOURCE_BLOCKS or made != here:
        return cannot_tell(
            f"a recording of {SOURCE_BLOCKS} blocks with torch {here}: `labkit record cliff`", measured
        )
    return Result(result.status, measured, result.missing)
