"""Lesson 04, `cliff.loop`: a loop that Dynamo gives up, for two reasons, put back into one graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from oddrank.record import record

from course.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too

__all__ = ["NO_NUMBERS", "STEPS", "apart", "damped", "loop"]

STEPS = 8
CLOSE = 1e-4
CALLED = "it is called as my_damped(x) with one tensor, as it stands and compiled"
NO_NUMBERS = "some of the results are NaN or infinite, and the right ones are numbers"
LAST = 3.25  # an input for which two ranks halve at the last step


def damped(x: Any) -> Any:
    """What is to be rewritten: what the attempt has to agree with, on every input."""
    for _ in range(STEPS):
        x = x * 0.5
        dist.all_reduce(x)
        x = x + 1
        if x.max() > 6:
            x = x / 2
    return x


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The same numbers, its argument as it was, and the whole loop in one region with every collective in it."""
    on_three_too(_judge_eager)(attempt, ranks, say)
    _judge_compiled(list(on_ranks(ranks, _compile, attempt, hint=CALLED)), say)


def _judge_eager(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    seen = on_ranks(ranks, _look, attempt, hint=CALLED)
    if any(found["none"] for found in seen):
        raise Mistake("it returns None", "return x: the caller goes on with what you return")
    worst = max(found["error"] for found in seen)
    eager = f"largest error {worst:.1e}, {seen[0]['eager_collectives']} collectives a call"
    if any(found["changed"] for found in seen):
        raise Mistake(eager, "it changes the tensor it is given: start from a new one, such as x * 0.5")
    if seen[0]["eager_collectives"] != STEPS:
        raise Mistake(eager, f"the ranks have to add up in each of the {STEPS} steps, once")
    if any(found["shape"] for found in seen):
        raise Mistake(f"the result has shape {seen[0]['shape']}", "the shape of the result is that of x")
    if not worst <= CLOSE:
        hint = "the collectives are there, the numbers are not those of `damped`: what happens to a value above 6?"
        raise Mistake(eager, hint if math.isfinite(worst) else NO_NUMBERS)
    say(eager)


def _judge_compiled(seen: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    for rank, found in enumerate(seen):
        regions, breaks = found["regions"], found["breaks"]
        said = (
            f"compiled, rank {rank}: {regions} region{'s' * (regions != 1)}, {breaks} breaks,"
            f" {found['collectives']} collectives a forward"
        )
        if found["reason"]:
            said += f"; Dynamo: {found['reason']}"
        if "branch" in found["reason"]:
            raise Mistake(
                said,
                "a Python `if` on the values of a tensor breaks: choose between two tensors, with torch.where",
            )
        if found["at_collective"]:
            hint = (
                "the pieces are compiled, and the collective still breaks: take one that the graph can hold"
            )
            raise Mistake(said, hint)
        if found["given_up"]:
            hint = "the collective is hidden from the compiler, in the loop's own body: Dynamo gave the whole frame up"
            raise Mistake(said, hint)
        if breaks or regions != 1:
            raise Mistake(said, f"something else breaks: {found['reason'] or 'read rec.breaks'}")
        if not found["compiled_error"] <= CLOSE:
            raise Mistake(said, "compiled, it gives other numbers than in eager: does it look at the mode?")
        if found["collectives"] != STEPS:
            raise Mistake(said, f"compiled too, the ranks have to add up in each of the {STEPS} steps, once")
    say(f"compiled: 1 region, 0 breaks, {seen[0]['collectives']} collectives in it, on every rank")


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the attempt on three inputs against `damped`."""
    mine = own_reduce(attempt)
    found: dict[str, Any] = {"none": False, "shape": (), "changed": False, "error": 0.0}
    for x in _inputs():
        expected, given = damped(x.clone()), x.clone()
        with record() as rec:
            y = mine(given)
        if y is None:
            return {**found, "none": True}
        found["eager_collectives"] = int(rec.counts[0].collectives or 0)
        found["changed"] |= not torch.equal(given, x)
        if y.shape != x.shape:
            found["shape"] = tuple(y.shape)
        found["error"] = max(found["error"], apart(y, expected))
    return found


def _inputs() -> list[Any]:
    """The ranks differ, and the branch is taken at other steps; with the last input, at the last step.

    The largest element of the second is its first, of the others the last.
    """
    me = here()
    rows = [torch.arange(4.0, device=me.device) * scale + me.rank for scale in (1.0, 2.5, LAST)]
    return [rows[0], rows[1].flip(0), rows[2]]


def _compile(attempt: Attempt) -> dict[str, Any]:
    """On a rank: what is compiled of the attempt, and what that gives."""
    inputs = _inputs()
    compiled = torch.compile(own_reduce(attempt))
    with record() as rec:
        for x in inputs:
            compiled(x.clone())
        with rec.forward():
            y = compiled(inputs[-1].clone())
    (counts,) = rec.counts.dicts()
    found: dict[str, Any] = {
        name: counts[name] for name in ("regions", "breaks", "at_collective", "collectives")
    }
    found["compiled_error"] = apart(y, damped(inputs[-1].clone()))
    new = [one for one in rec.breaks if one.during]  # not those of code that these ranks compiled before
    found["given_up"] = sum(one.kind == "gave-up" for one in new)
    found["reason"] = new[-1].reason if new else ""
    return found


def apart(y: Any, right: Any) -> float:
    """The largest difference; infinite where the shapes differ or a number is NaN."""
    return float((y - right).abs().nan_to_num(float("inf")).max()) if y.shape == right.shape else float("inf")


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
