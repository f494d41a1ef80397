"""Lesson 09: calls that break each guard of a list, and a module that counts its calls without compiling again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course.shared.variants import with_own_code
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.records.compile_log import install
from labkit.records.names import Names
from labkit.records.reasons import recompile
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["base_call", "counter", "mystery", "reading"]

CALLS = 12
MOST_GRAPHS = 2
SCALES = [1.0 + i % 3 for i in range(CALLS)]  # x differs from call to call


def judge_counter(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Twelve calls of the compiled module: its numbers, its graphs, and that each of them ran compiled code."""
    hint = "it is called as my_counter() and returns a module, which is called as module(x)"
    total = sum(1 + rank for rank in range(len(ranks)))
    seen = list(on_ranks(ranks, _count, attempt, hint=hint))
    for rank, found in enumerate(seen):
        if found.get("kind"):
            raise Mistake(f"my_counter() returns a {found['kind']}", hint)
        wrong = [i + 1 for i, ok in enumerate(found["right"]) if not ok]
        if wrong:
            given = ", ".join(f"{scale:g}" for scale in SCALES[: wrong[0]])
            added = [float(total * sum(SCALES[: wrong[0]]))] * 3
            raise Mistake(
                f"rank {rank}: call {wrong[0]} gives {found['values'][wrong[0] - 1]}; x was {given} times the first x",
                "it adds up the sums of all calls: n times the sum of the x of this call is asked for"
                if found["values"][wrong[0] - 1] == added
                else "the n-th call returns n times the sum over all ranks: count first, then multiply",
            )
    found = seen[0]
    finding = (
        f"graphs {found['graphs']}, breaks {found['breaks']}, calls without compiled code {found['eager']}"
    )
    if found["breaks"]:
        raise Mistake(
            finding,
            "to read a tensor's value (.item(), int(), float()) ends the graph: go on computing with the tensor",
        )
    if found["graphs"] > MOST_GRAPHS or found["eager"]:
        raise Mistake(
            finding,
            "an int on a module is part of the code, each value a version: what changes belongs into a buffer",
        )
    say(f"{CALLS} calls: {finding}, right numbers on {len(seen)} ranks")


def _count(attempt: Attempt) -> dict[str, Any]:
    module = attempt()
    if not isinstance(module, torch.nn.Module):
        return {"kind": type(module).__name__}
    torch_compat.dynamo_reset()
    made: list[Any] = []
    entered: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    known = {id(c) for c in install().known()}
    run = torch.compile(with_own_code(module), backend=keep)
    x = torch.ones(3) * (1 + dist.get_rank())
    total = sum(1 + rank for rank in range(dist.get_world_size()))
    values, eager = [], 0
    stop = torch_compat.on_region_entry(lambda code: entered.append(code))
    try:
        with torch.no_grad(), torch_compat.quiet_dynamo():
            for scale in SCALES:
                entered.clear()
                y = run(x * scale)
                values.append(None if y is None else (y + 0).tolist())
                eager += not entered
    finally:
        stop()
        torch_compat.dynamo_reset()
    new = [c for c in install().known() if id(c) not in known]
    right = [value == [float(total * SCALES[i] * (i + 1))] * 3 for i, value in enumerate(values)]
    broke = sum(c.broke or (c.skipped and "recompile limit" not in c.failure) for c in new)
    return {"values": values, "right": right, "graphs": len(made), "breaks": broke, "eager": eager}


def mystery(x, steps=2, mode=None):  # type: ignore[no-untyped-def]
    """The function that has the guards of the list: nothing that a reader has to see."""
    for _ in range(steps):
        x = x.sin()
    if mode is not None:
        x = x.to(mode)
    return x.sum(0) if x.shape[0] <= 16 else x.mean(0)


def base_call(f: Callable[..., Any]) -> Any:
    """The call that the list was made for."""
    x = torch.ones(4, 8)
    torch_compat.mark_dynamic(x, 0)
    return f(x)


def broken(x, steps=2, mode=None):  # type: ignore[no-untyped-def]
    """The guards of the list, by their names in the exercise, that a call with these arguments breaks."""
    return [
        name
        for name, breaks in {
            "dtype": x.dtype != torch.float32,
            "layout": x.stride() != (8, 1),
            "gradient": x.requires_grad,
            "columns": x.shape[1:] != (8,),
            "rows": not 2 <= x.shape[0] <= 16,
            "steps": steps != 2,
            "mode": mode is not None,
            "state": not torch.is_grad_enabled(),
        }.items()
        if breaks
    ]


# a guard's name in the exercise, and what Dynamo says where it fails
GUARDS = {
    "dtype": "dtype mismatch",
    "layout": "stride mismatch",
    "gradient": "requires_grad mismatch",
    "columns": "size mismatch at index 1",
    "rows": "x.size()[0]",
    "steps": "steps ==",
    "mode": "mode is None",
    "state": "grad_mode",
}


def judge_reading(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each call, made after a fresh `base_call`, has to fail at its own guard."""
    hint = f"my_calls() returns a dict of functions of f, one for each of {', '.join(GUARDS)}"
    found = on_ranks(ranks, _read, attempt, only=0, hint=hint)[0]
    if not isinstance(found, dict):
        raise Mistake(f"my_calls() returns {found}", hint)
    missing = [name for name in GUARDS if name not in found]
    if missing:
        raise Mistake(f"no call for {', '.join(missing)}", "each guard of the list wants a call of its own")
    for name, expected in GUARDS.items():
        said, others = found[name]
        if not said:
            raise Mistake(
                f"{name}: nothing compiled again",
                "this call fits the whole list: read the guard once more, and go beyond what it allows",
            )
        if expected not in said or others:
            also = f"; it breaks {', '.join(others)} as well" if others else ""
            raise Mistake(
                f"{name}: failed at: {said}{also}",
                "rows of another length are another stride as well: take some columns of a tensor that fits"
                if (name, others) == ("columns", ["layout"])
                else "another guard fails: start from a call that fits, and change one thing only",
            )
        say(f"{name}: {said}")


def _read(attempt: Attempt) -> Any:
    """The guard at which each call failed, '' for none, and what else it breaks; or the type of what is no dict."""
    calls = attempt()
    if not isinstance(calls, dict):
        return type(calls).__name__
    found = {}
    for name in GUARDS:
        if name not in calls:
            continue
        torch_compat.dynamo_reset()
        run = torch.compile(mystery, backend="eager")
        base_call(run)
        known = {id(c) for c in install().known()}
        others: set[str] = set()

        def call(*args: Any, run: Any = run, others: set[str] = others, **kwargs: Any) -> Any:
            others.update(broken(*args, **kwargs))
            return run(*args, **kwargs)

        calls[name](call)
        new = [c for c in install().known() if id(c) not in known]
        said = "; ".join(recompile(c.reasons, "", Names()).reason for c in new if c.reasons)
        found[name] = said, sorted(others - {name})
    torch_compat.dynamo_reset()
    return found


counter = Exercise(
    "guards.counter",
    "a module that counts its calls",
    "medium",
    10,
    (
        f"at most {MOST_GRAPHS} graphs in {CALLS} calls",
        "no break, and compiled code in every call",
        "the n-th call returns n times the sum over all ranks",
    ),
    judge_counter,
)
reading = Exercise(
    "guards.reading",
    "read a guard list",
    "medium",
    15,
    (
        f"eight calls, one for each of {', '.join(GUARDS)}",
        "each compiles again at its own guard",
    ),
    judge_reading,
)
