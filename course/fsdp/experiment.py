"""Sharded training under the compiler: routes beside one process, and Inductor's passes on gathered weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from course.fsdp import passes
from course.fsdp.declared import FSDP as ABOUT
from course.shared import program as programs
from course.shared import training
from labkit.ranks import Ranks
from labkit.report import Report

__all__ = ["NEEDED", "passed", "run"]

NEEDED = ("ROUTES", "seeded", "ddp", "fsdp", "Unit", "small_fsdp", "gathered_weights", "gathered_again")


def run(
    ranks: Ranks,
    only: Sequence[str] = (),
    *,
    steps: int | None = None,
    talk: bool = False,
    program: Any = None,
) -> Report:
    """Every route of lesson 14 beside one process, or with `only` Inductor's passes.

    Args:
        ranks: started ranks; the routes need two or more that divide 10, the rows of the smallest weight.
        only: 'routes' or 'passes', one of them.
        steps: steps of gradient descent before gradients are compared; for routes.
        talk: print each route or setting.
        program: what has the lesson's names; the lesson's own where it is left out.

    Raises:
        ValueError: a part does not exist, more than one is given, `passes` is given steps, or the number of ranks or
            the program cannot be run; nothing has run then.
        RankError: a rank fails.

    >>> run(None, ["weather"])
    Traceback (most recent call last):
    ValueError: unknown part 'weather' of fsdp: there is routes, passes
    """
    name = training.one_part(ABOUT, only)
    if name == "passes":
        if steps is not None:
            raise ValueError("fsdp/passes takes no steps: that is for fsdp/routes")
        return passes.run(ranks, execute=True, talk=talk, program=program)
    if ranks.world_size not in (2, 5, 10):
        raise ValueError(
            f"10 rows of a weight are divided over 2, 5 or 10 ranks, and these are {ranks.world_size}"
        )
    chosen = programs.choose("fsdp", program, NEEDED)
    many = training.STEPS if steps is None else steps
    report = training.compare(ranks, chosen.code.seeded, chosen.code.ROUTES, steps=many, talk=talk)
    made = report.provenance | {"program": chosen.digest}
    notes = [*report.notes, *chosen.notes]
    return replace(report, name="fsdp", notes=notes, provenance=made)


def passed(report: Report) -> bool:
    """Whether every route of a report learned what one process learns; True for the report of another part."""
    table = report.tables.get("routes")
    return table is None or "equal" not in table or bool(table["equal"].all())
