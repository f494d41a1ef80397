"""Lesson 04, `cliff.loop`: a loop that Dynamo gives up, for two reasons, put back into one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from oddrank.record import record

from course.cliff.exercises.table import NO_NUMBERS, apart, counted, judge_by, seen
from course.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, on_ranks, on_three_too

__all__ = ["damped", "loop"]

STEPS, CLOSE = 8, 1e-4
CALLED = "it is called as my_damped(x) with one tensor, as it stands and compiled"
EACH = f"the ranks have to add up in each of the {STEPS} steps, once"


def damped(x: Any) -> Any:
    """The oracle: what is to be rewritten."""
    for _ in range(STEPS):
        x = x * 0.5
        dist.all_reduce(x)
        x = x + 1
        if x.max() > 6:
            x = x / 2
    return x


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The numbers of `damped`, its argument as it was, and the whole loop in one region with every collective in it."""
    on_three_too(lambda mine, some, tell: judge_by(on_ranks(some, _eager, mine, hint=CALLED), tell))(
        attempt, ranks, say
    )
    judge_by(on_ranks(ranks, _compiled, attempt, hint=CALLED), say)


def _inputs() -> list[Any]:
    """The ranks differ, and halve at other steps: with the last input, two ranks do at the last step.

    One is exactly at 6 after a step, one at 5.97, and one is far below zero: none of these is above 6.
    """
    me = here()
    rows = [torch.arange(4.0) * scale + me.rank for scale in (1.0, 2.5, 3.25)]
    drawn = torch.rand(3, 5, generator=torch.Generator().manual_seed(me.rank), dtype=torch.float64)
    first = 1.0 if me.rank == 0 else 0.0
    edges = [first * torch.tensor([top, 1.0, 0.0, 0.0]) for top in (10.0, 9.94, -40.0)]
    return [x.to(me.device) for x in (rows[0], rows[1].flip(0), 9 * drawn.t(), *edges, rows[2])]


def _eager(attempt: Attempt) -> Any:
    """On a rank: the attempt beside `damped`, in eager."""
    mine, error, calls, changed = own_reduce(attempt), 0.0, set(), False
    for x in _inputs():
        right, given = damped(x.clone()), x.clone()
        with record() as rec:
            y = mine(given)
        if y is None or y.shape != x.shape or not y.isfinite().all():
            error = float("inf")
            break
        changed |= not torch.equal(given, x)
        calls.add(int(rec.counts.dicts()[0]["collectives"] or 0))
        error = max(error, apart(y, right))
    mistakes = {
        "the caller goes on with what you return": y is None,
        "it changes the tensor it is given: the caller still needs its numbers": changed,
        "the shape of the result is that of x": y is not None and y.shape != x.shape,
        NO_NUMBERS: y is not None and not y.isfinite().all(),
        EACH: calls != {STEPS},
        "the collectives are there, the numbers are not those of `damped`: which value decides there, and when?": (
            not error <= CLOSE
        ),
    }
    return seen(f"largest error {error:.1e}, {', '.join(map(str, calls))} collectives a call", mistakes)


def _compiled(attempt: Attempt) -> Any:
    """On a rank: what is compiled of the attempt, and what that gives."""
    inputs, compiled = _inputs(), torch.compile(own_reduce(attempt))
    with record() as rec:
        for x in inputs:
            compiled(x.clone())
        with rec.forward():
            y = compiled(inputs[-1].clone())
    (counts,) = rec.counts.dicts()
    new = [one for one in rec.breaks if one.during]  # not those of code that these ranks compiled before
    reason = new[-1].reason if new else ""
    mistakes = {
        "Python asks a tensor for its value to choose a branch": "branch" in reason,
        "the pieces are compiled, and the collective still breaks": counts["at_collective"],
        "what the compiler cannot trace stands in the loop's own body: Dynamo gave the whole frame up": any(
            one.kind == "gave-up" for one in new
        ),
        f"something else breaks: {reason}": counts["breaks"] or counts["regions"] != 1,
        "compiled, it gives other numbers than in eager: does it look at the mode?": (
            not apart(y, damped(inputs[-1].clone())) <= CLOSE
        ),
        f"compiled too, {EACH}": counts["collectives"] != STEPS,
    }
    return seen(f"{counted(counts)} a forward" + (f"; Dynamo: {reason}" if reason else ""), mistakes)


loop = Exercise(
    "cliff.loop",
    "the loop",
    "medium",
    10,
    (
        "the same numbers as `damped`, and its argument unchanged",
        f"{STEPS} collectives a call",
        "compiled, 1 region and 0 breaks a forward, on every rank",
    ),
    judge,
)
