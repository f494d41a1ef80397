"""Numeric drift: how far compiled is from eager, from which stage on, and which of the two is nearer to the truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from course.guards.declared import DRIFT as ABOUT
from course.shared.options import chosen
from course.shared.program import choose as choose_program
from course.shared.sweep import Sweep
from labkit import lessons
from labkit.ranks import Ranks
from labkit.report import Report, provenance

NEEDED = ("STAGES", "EMULATED", "drifted", "attention_like")  # what is taken of the program
VIEW = "course.guards.drift_figures:figure"
DTYPES = ("float32", "bfloat16")
SEEDS = 16


def run(
    ranks: Ranks,
    dtype: Sequence[str] = (),
    *,
    seeds: int = SEEDS,
    stages: Sequence[str] = (),
    fresh: bool = False,
    folder: str | Path | None = None,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Run `attention_like` in eager and through ever more of the compiler, and compare the numbers with both.

    seeds: inputs, 2 at least; the spread is over them. No communication runs, so one rank does it. dtype: of 'float32'
    and 'bfloat16'. program: the cells of lesson 09, as a module or a mapping such as a notebook's `globals()`; None is
    the lesson's own. Truth is the same function in float64 on the same rounded inputs.

    `stages` has for each dtype and stage the share of elements that are not eager's, bit for bit, the largest
    difference, and the root mean square error against the truth, each as median, least and most over the inputs.
    `inputs` is how many of them differ at all; `first` names the first stage at which one differs, and the first at
    which more than half do. stages: names of those to run, in their order; by default all. Raises ValueError for a
    dtype, a stage or a number of seeds that does not exist, before any rank is started; RankError when a rank fails.

    >>> import tempfile
    >>> with Ranks(1, device="cpu", backend="gloo", quiet=True) as ranks, tempfile.TemporaryDirectory() as folder:
    ...     report = run(ranks, ["float32"], seeds=2, stages=["eager"], folder=folder)
    >>> report.tables["first"]["first stage that differs"].item()
    'none'
    """
    dtypes = chosen(dtype, DTYPES, "dtype")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or not 2 <= seeds <= 1000:
        raise ValueError(f"seeds is a number of inputs from 2 to 1000, got {seeds!r}")
    ours = choose_program("guards", program, NEEDED)
    code = ours.code
    known = (*code.STAGES, code.EMULATED)
    unknown = [name for name in stages if name not in known]
    if unknown:
        raise ValueError(f"unknown stage {unknown[0]!r}: there is {'; '.join(known)}")
    settings = {
        "device": ranks.device,
        "world_size": ranks.world_size,
        "threads": ranks.threads,
        "seeds": seeds,
        "program": ours.digest,
    }
    sweep = Sweep("drift", settings, folder, fresh, talk)
    points = {
        f"{name}, {stage}": (name, stage) for name in dtypes for stage in known if stage in (stages or known)
    }

    def measure(point: tuple[str, str]) -> list[dict[str, Any]]:
        found = ranks.run(code.drifted, *point, seeds, code.attention_like, timeout=600, ranks=0)
        head = {"dtype": point[0], "stage": point[1]}
        return [{**head, "rank": rank, **row} for rank, rows in found.items() for row in rows]

    rows = sweep.run(points, measure)
    more = [*ours.notes, *filter(None, [sweep.note()])]
    return _report(rows, provenance(**settings, resumed=sweep.resumed), more, ranks.label)


def first_drift(differ: dict[str, float], tolerance: float = 0.0) -> str:
    """The first stage whose numbers are not eager's, of `differ` by stage; '' where none does.

    Every stage is compared with eager, and not with its neighbour: a later stage may undo, or hide, an earlier one.

    >>> first_drift({"eager": 0, "aot_eager": 0, "aot_eager_decomp_partition": 0.2, "inductor": 0.5})
    'aot_eager_decomp_partition'
    """
    stages = lessons.program("guards").STAGES
    return next((stage for stage in stages if differ.get(stage, 0) > tolerance), "")


def _since(stages: pd.DataFrame) -> dict[str, Any]:
    """The first stage at which any input differs, in how many it does there, and the first at which most differ."""
    by = stages.set_index("stage")
    some = first_drift(dict(by["inputs"]))
    most = first_drift(dict(by["inputs"] / by["n"]), tolerance=0.5)
    return {
        "first stage that differs": some or "none", "inputs": int(by["inputs"].get(some, 0)), "of": int(by["n"].max()),
        "most differ from": most or "none",
    }  # fmt: skip


def since(row: dict[str, Any]) -> str:
    """A row of `first` in words: the stage, and where it is a few inputs only, how many, and where most differ.

    >>> since({"first stage that differs": "aot_eager", "inputs": 1, "of": 16, "most differ from": "inductor"})
    'aot_eager in 1 of 16 inputs, inductor in most'
    >>> since({"first stage that differs": "inductor", "inputs": 16, "of": 16, "most differ from": "inductor"})
    'inductor'
    """
    some, most = row["first stage that differs"], row["most differ from"]
    if some == most:
        return str(some)
    rest = f"{most} in most" if most != "none" else "no stage in most"
    return f"{some} in {row['inputs']} of {row['of']} inputs, {rest}"


def _report(rows: list[dict[str, Any]], settings: dict[str, Any], more: list[str], label: str) -> Report:
    samples = pd.DataFrame(rows)
    samples["ratio"] = samples["error"] / samples["eager_error"]
    by = samples.groupby(["dtype", "stage"], sort=False)
    stages = by[["differ", "largest", "error", "eager_error"]].median()
    for column in ("differ", "ratio"):
        stages[f"{column}_min"], stages[f"{column}_max"] = by[column].min(), by[column].max()
    stages["ratio"], stages["n"] = by["ratio"].median(), by["seed"].count()
    stages["inputs"] = by["differ"].agg(lambda differ: int((differ > 0).sum()))
    stages = stages.reset_index()
    first = pd.DataFrame(
        [{"dtype": dtype, **_since(mine)} for dtype, mine in stages.groupby("dtype", sort=False)]
    )
    notes = [f"{row['dtype']}: {since(row)}" for row in first.to_dict("records")]
    notes = ["first stage that differs from eager: " + "; ".join(notes), *more]
    tables = {"stages": stages, "first": first, "samples": samples}
    return Report("drift", ABOUT.title, label, tables, [], settings, notes, VIEW)
