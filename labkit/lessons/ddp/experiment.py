"""DDP under the compiler: its modes, its buckets, compiled autograd, a pipeline, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from labkit.lessons.ddp import backward, drills, pipeline
from labkit.lessons.ddp.declared import DDP as ABOUT
from labkit.lessons.ddp.routes import ROUTES, ddp
from labkit.lessons.shared import training, training_clock
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.ranks import Ranks
from labkit.report import Report

__all__ = ["passed", "run"]

LARGE = Sizes(width=256, hidden=1024)  # large enough that a step has something to hide behind


def run(ranks: Ranks, only: Sequence[str] = (), *, steps: int | None = None, talk: bool = False) -> Report:
    """Every mode beside one process, or with `only` another part.

    `talk` goes to the parts that print as they go. Raises ValueError for a part that does not exist, more than one of
    them, or steps for a part that takes none; and what the part raises.

    >>> run(None, ["weather"])
    Traceback (most recent call last):
    ValueError: unknown part 'weather' of ddp: there is routes, clock, buckets, backward, pipeline, drills
    """
    names = list(only) or ["routes"]
    for name in names:
        if name not in ABOUT.parts:
            raise ValueError(f"unknown part {name!r} of ddp: there is {', '.join(ABOUT.parts)}")
    if len(names) > 1:
        raise ValueError(f"one part of ddp at a time, got {', '.join(names)}")
    (name,) = names
    if name == "routes":
        many = training.STEPS if steps is None else steps
        return training.compare(ranks, partial(Model, Sizes()), ROUTES, steps=many, talk=talk)
    if steps is not None:
        raise ValueError(f"ddp/{name} takes no steps: that is for ddp/routes")
    if name == "clock":
        return training_clock.clock(ranks, partial(Model, LARGE), ROUTES, talk=talk)
    if name == "buckets":
        sizes = {f"{cap:g} MiB": partial(ddp, mode="ddp_optimizer", cap_mb=cap) for cap in (1, 2, 4, 25)}
        sizes["no_optimization"] = partial(ddp, mode="no_optimization", cap_mb=25)
        return training_clock.clock(ranks, partial(Model, LARGE), sizes, rounds=12, talk=talk)
    if name == "drills":
        return drills.run(ranks, talk=talk)
    return {"backward": backward, "pipeline": pipeline}[name].run(ranks)


def passed(report: Report) -> bool:
    """Whether every mode of a report learned what one process learns; True for the report of another part."""
    table = report.tables.get("routes")
    return table is None or "equal" not in table or bool(table["equal"].all())
