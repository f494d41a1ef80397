"""DDP under the compiler: its modes beside one process, on the clock, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from course.ddp import drills, training_clock
from course.ddp.declared import DDP as ABOUT
from course.shared import program as programs
from course.shared import training
from labkit.ranks import Ranks
from labkit.report import Report

__all__ = ["passed", "run"]

NEEDED = ("Model", "seeded", "LARGE", "ROUTES", "EAGER", "COMPILED", "DRILLS")  # what is taken of the program
STALL_S = 5.0


def run(
    ranks: Ranks,
    only: Sequence[str] = (),
    *,
    program: Any = None,
    steps: int | None = None,
    talk: bool = False,
) -> Report:
    """Every route of the lesson beside one process, or with `only` another part.

    Args:
        ranks: started ranks.
        only: the name of a part, or nothing for 'routes'.
        program: the model, the routes and the drills, as a module or a mapping such as a notebook's `globals()`; None
            is the lesson's own.
        steps: steps of gradient descent before gradients are compared; for 'routes'.
        talk: print as parts go on.

    Raises:
        ValueError: a part does not exist, there is more than one, or steps are given for a part that takes none;
            nothing has run then.
        RankError: a rank fails.

    >>> run(None, ["weather"])
    Traceback (most recent call last):
    ValueError: unknown part 'weather' of ddp: there is routes, eager, compiled, drills
    """
    name = training.one_part(ABOUT, only)
    if steps is not None and name != "routes":
        raise ValueError(f"ddp/{name} takes no steps: that is for ddp/routes")
    ours = programs.choose("ddp", program, NEEDED)
    code = ours.code
    if name == "routes":
        many = training.STEPS if steps is None else steps
        report = training.compare(ranks, code.seeded, code.ROUTES, steps=many, talk=talk)
    elif name == "drills":
        report = drills.run(ranks, code.DRILLS, stall=STALL_S, talk=talk)
    else:
        routes = code.EAGER if name == "eager" else code.COMPILED
        large = partial(code.seeded, **code.LARGE)
        report = training_clock.clock(ranks, large, routes, rounds=12, talk=talk)
    made, notes = report.provenance | {"program": ours.digest}, [*report.notes, *ours.notes]
    own = "ddp" if name == "routes" else f"ddp_{name}"
    return replace(report, name=own, notes=notes, provenance=made)


def passed(report: Report) -> bool:
    """Whether every route of a report learned what one process learns; True for the report of another part."""
    table = report.tables.get("routes")
    return table is None or "equal" not in table or bool(table["equal"].all())
