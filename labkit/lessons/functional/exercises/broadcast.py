"""Lesson 02, `semantics.gate`: a broadcast that is in place in eager and functional when compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.graphs import record
from labkit.lessons.shared.harness import own_reduce
from labkit.lessons.shared.memory import allocations
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import funcol

__all__ = ["EXERCISE"]


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Eager: right, without new memory. Compiled: right, one graph, no more allocations than the functional form."""
    hint = "it is called as my_broadcast(x), and returns what rank 0 has, in both modes"
    seen = list(on_ranks(ranks, _look, attempt, hint=hint))
    if any(found["none"] for found in seen):
        raise Mistake("it returns None", "return the tensor: what comes next is computed from it")
    first, last = seen[0], seen[-1]
    eager = f"eager: rank {len(seen) - 1} gets {last['eager']}, {_count(first['allocations'], 'allocation')}"
    if any(found["eager"] != found["right"] for found in seen):
        raise Mistake(eager, f"every rank should get {first['right']}, which is what rank 0 has")
    if any(found["allocations"] for found in seen):
        raise Mistake(eager, "eager pays for a new tensor: there, dist.broadcast writes into x itself")
    say(eager)
    compiled = (
        f"compiled: rank {len(seen) - 1} gets {last['compiled']}, {_count(first['graphs'], 'graph')}, "
        f"{_count(first['breaks'], 'break')}, {_count(first['compiled_allocations'], 'allocation')}"
    )
    if any(found["breaks"] or found["graphs"] != 1 for found in seen):
        hint = "dist.broadcast breaks the graph: while compiling, call the form that a graph can hold"
        raise Mistake(f"{compiled}; Dynamo: {first['reason']}" if first["reason"] else compiled, hint)
    if any(found["compiled"] != found["right"] for found in seen):
        raise Mistake(compiled, "functional collectives leave their input alone: return what they return")
    if any(found["compiled_allocations"] > found["enough"] for found in seen):
        hint = "the graph makes a tensor that nobody needs: to have what one rank has, take the collective for that"
        raise Mistake(f"{compiled}, where {first['enough']} are enough", hint)
    say(compiled)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the attempt in eager and compiled, what it allocates, and what was made of it."""

    def sample() -> Any:
        return torch.arange(4.0, device=here().device) + 10 * here().rank + 1

    def compiled(broadcast: Callable[..., Any]) -> Any:
        def program(x):
            return broadcast(x * 2) / 2

        return torch.compile(program)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo's about what it cannot trace: the finding says it
        mine, x = own_reduce(attempt), sample()
        y = mine(x)
        if y is None:
            return {"none": True}
        right = (sample() - 10 * here().rank).tolist()
        found: dict[str, Any] = {"none": False, "right": right, "eager": y.tolist()}
        found["allocations"] = allocations(lambda: _finished(mine(x)))
        run = compiled(mine)
        run(sample())
        with record() as rec, rec.forward():
            found["compiled"] = run(sample()).tolist()
        counts = rec.counts().iloc[0]
        found |= {"graphs": int(counts["regions"]), "breaks": int(counts["breaks"])}
        found["reason"] = str(rec.breaks.iloc[-1]["reason"]) if counts["breaks"] else ""
        best = compiled(lambda x: funcol.broadcast(x, 0, dist.group.WORLD))
        for name, program in (("compiled_allocations", run), ("enough", best)):
            program(sample())
            given = sample()
            found[name] = allocations(lambda program=program, given=given: program(given))  # type: ignore[misc]
    return found


def _finished(value: Any) -> Any:
    """What is still on its way must arrive inside the measurement."""
    value.tolist()
    return value


EXERCISE = Exercise(
    "semantics.gate",
    "the gate of a broadcast",
    "medium",
    10,
    (
        "what rank 0 has on every rank, in both modes",
        "0 allocations in eager",
        "compiled, 1 graph and 0 breaks",
        "compiled, no more allocations than with the functional form",
    ),
    judge,
)
