"""Lesson 04, `cliff.loop`: a loop that Dynamo gives up, for two reasons, put back into one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.graphs import record
from labkit.lessons.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["EXERCISE", "STEPS", "copies", "damped"]

STEPS = 8
CLOSE = 1e-4


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
    hint = "it is called as my_damped(x) with one tensor, as it stands and compiled"
    seen = on_ranks(ranks, _look, attempt, hint=hint)
    if any(found["none"] for found in seen):
        raise Mistake("it returns None", "return x: the caller goes on with what you return")
    worst = max(found["error"] for found in seen)
    eager = f"largest error {worst:.1e}, {seen[0]['eager_collectives']} collectives a call"
    if any(found["changed"] for found in seen):
        raise Mistake(eager, "it changes the tensor it is given: start from a new one, such as x * 0.5")
    if seen[0]["eager_collectives"] != STEPS:
        raise Mistake(eager, f"the ranks have to add up in each of the {STEPS} steps, once")
    if worst > CLOSE:
        hint = "the collectives are there, the numbers are not those of `damped`: what happens to a value above 6?"
        raise Mistake(eager, hint)
    say(eager)
    _judge_compiled(list(seen), say)


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
            raise Mistake(said, f"something else breaks: {found['reason'] or 'read labkit.record().breaks'}")
        if found["compiled_error"] > CLOSE:
            raise Mistake(said, "compiled, it gives other numbers than in eager: does it look at the mode?")
        if found["copies"]:
            raise Mistake(
                f"{said}, {found['copies']} copy_ in the graph",
                "an in-place collective is rewritten with a copy back: use what the functional form returns",
            )
    say(f"compiled: 1 region, 0 breaks, {seen[0]['collectives']} collectives in it, on every rank")


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the attempt on two inputs against `damped`, and what was compiled of it."""
    me = here()
    mine = own_reduce(attempt)
    # the ranks differ, and the branch is taken at other steps
    inputs = [torch.arange(4.0, device=me.device) * scale + me.rank for scale in (1.0, 2.5)]
    found: dict[str, Any] = {"none": False, "changed": False, "error": 0.0, "compiled_error": 0.0}
    for x in inputs:
        expected, given = damped(x.clone()), x.clone()
        with record() as rec:
            y = mine(given)
        if y is None:
            return {**found, "none": True}
        found["eager_collectives"] = int(rec.counts().iloc[0]["collectives"])
        found["changed"] |= not torch.equal(given, x)
        found["error"] = max(found["error"], float((y - expected).abs().max()))
    compiled = torch.compile(mine)
    with record() as rec:
        for x in inputs:
            compiled(x.clone())
        with rec.forward():
            y = compiled(inputs[-1].clone())
    found["compiled_error"] = float((y - expected).abs().max())
    counts = rec.counts().iloc[0]
    found |= {name: int(counts[name]) for name in ("regions", "breaks", "at_collective", "collectives")}
    new = rec.breaks[rec.breaks["during"].astype(bool)]  # not those of code that these ranks compiled before
    found["given_up"] = int((new["kind"] == "skip").sum())
    found["reason"] = str(new.iloc[-1]["reason"]) if len(new) else ""
    found["copies"] = copies(rec)
    return found


def copies(rec: Any) -> int:
    """How many `copy_` the graphs hold that ran in a record."""
    ran = rec.graphs[rec.graphs["calls"] > 0]
    lines = [line for code in ran["code"] for line in code.splitlines() if not line.lstrip().startswith("#")]
    return sum(".copy_(" in line for line in lines)


EXERCISE = Exercise(
    "cliff.loop",
    "the loop",
    "medium",
    10,
    (
        "the same numbers as `damped`, and its argument unchanged",
        f"{STEPS} collectives a call",
        "compiled, 1 region and 0 breaks a forward, on every rank",
        "no `copy_` left in the graph",
    ),
    judge,
)
