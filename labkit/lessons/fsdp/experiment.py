"""Sharded training under the compiler: FSDP2, gathered weights, tensor parallelism, and Inductor's passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from labkit.lessons.fsdp import passes
from labkit.lessons.fsdp.declared import FSDP as ABOUT
from labkit.lessons.fsdp.routes import ROUTES
from labkit.lessons.shared import training, training_clock
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.ranks import Ranks
from labkit.report import Report

__all__ = ["passed", "run"]

LARGE = Sizes(width=256, hidden=1024)  # large enough that a step has something to hide behind


def run(ranks: Ranks, only: Sequence[str] = (), *, steps: int | None = None, talk: bool = False) -> Report:
    """Every route beside one process, or with `only` another part.

    `talk` goes to the parts that print as they go. Raises ValueError for a part that does not exist, more than one of
    them, or steps for a part that takes none; and what the part raises.

    >>> run(None, ["weather"])
    Traceback (most recent call last):
    ValueError: unknown part 'weather' of fsdp: there is routes, clock, passes
    """
    names = list(only) or ["routes"]
    for name in names:
        if name not in ABOUT.parts:
            raise ValueError(f"unknown part {name!r} of fsdp: there is {', '.join(ABOUT.parts)}")
    if len(names) > 1:
        raise ValueError(f"one part of fsdp at a time, got {', '.join(names)}")
    (name,) = names
    if name == "routes":
        many = training.STEPS if steps is None else steps
        return training.compare(ranks, partial(Model, Sizes()), ROUTES, steps=many, talk=talk)
    if steps is not None:
        raise ValueError(f"fsdp/{name} takes no steps: that is for fsdp/routes")
    if name == "clock":
        chosen = ("FSDP2, eager", "FSDP2, block by block", "gathered weights")
        return training_clock.clock(ranks, partial(Model, LARGE), {n: ROUTES[n] for n in chosen}, talk=talk)
    return passes.run(ranks, execute=True, talk=talk)


def passed(report: Report) -> bool:
    """Whether every route of a report learned what one process learns; True for the report of another part."""
    table = report.tables.get("routes")
    return table is None or "equal" not in table or bool(table["equal"].all())
