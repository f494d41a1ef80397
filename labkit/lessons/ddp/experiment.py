"""Training on several ranks under the compiler: DDP, FSDP2, gathered weights, tensor parallelism, a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.lessons.ddp import backward, curves, drills, parity, passes, pipeline
from labkit.lessons.ddp import steps as timeline
from labkit.lessons.ddp.declared import TRAINING as ABOUT
from labkit.lessons.ddp.parity import TOLERANCE
from labkit.ranks import Ranks
from labkit.report import Report

__all__ = ["TOLERANCE", "passed", "run"]


def run(ranks: Ranks, only: Sequence[str] = (), *, steps: int | None = None, talk: bool = False) -> Report:
    """Every route beside one process (`parity.run`), or with `only` another part.

    `talk` goes to the parts that print as they go. Raises ValueError for a part that does not exist, more than one of
    them, or steps for a part that takes none; and what the part raises.

    >>> run(None, ["weather"])
    Traceback (most recent call last):
    ValueError: unknown part 'weather' of training: there is routes, ddp, buckets, fsdp, backward, passes, curves, ...
    """
    names = list(only) or ["routes"]
    for name in names:
        if name not in ABOUT.parts:
            raise ValueError(f"unknown part {name!r} of training: there is {', '.join(ABOUT.parts)}")
    if len(names) > 1:
        raise ValueError(f"one part of training at a time, got {', '.join(names)}")
    (name,) = names
    if name == "routes":
        return parity.run(ranks, steps=parity.STEPS if steps is None else steps, talk=talk)
    if steps is not None:
        raise ValueError(f"training/{name} takes no steps: that is for training/routes")
    if name == "ddp":
        return timeline.run(ranks, [*timeline.DDP_MODES, "DDP, python_reducer, compiled autograd"], talk=talk)
    if name == "fsdp":
        return timeline.run(ranks, ["FSDP2, eager", "FSDP2, block by block", "gathered weights"], talk=talk)
    if name == "buckets":
        return timeline.sweep(ranks, rounds=12, talk=talk)
    if name == "passes":
        return passes.run(ranks, execute=True, talk=talk)
    if name == "drills":
        return drills.run(ranks, talk=talk)
    return {"backward": backward, "curves": curves, "pipeline": pipeline}[name].run(ranks)


def passed(report: Report) -> bool:
    """Whether every route of a report learned what one process learns; True for the report of another part."""
    table = report.tables.get("routes")
    return table is None or "equal" not in table or bool(table["equal"].all())
