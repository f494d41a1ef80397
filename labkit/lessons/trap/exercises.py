"""Lesson 05: break the gate so that only a count of operations sees it, and write the guardrail that does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit import lessons
from labkit.contract import assert_in_place
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["BREAK", "GUARD"]

cliff = lessons.program("cliff")

CLOSE = 1e-5


def _judge_broken(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Right sums in the tensor it was given, which it returns; and the guardrail fails all the same."""
    hint = "it is called as my_broken_gate(x) in eager: it sums x over the ranks and returns x"
    seen = on_ranks(ranks, _look_at_gate, attempt, hint=hint)
    for rank, found in enumerate(seen):
        if found["none"]:
            raise Mistake("it returns None", "return x: a test for the same tensor looks at what comes back")
        said = f"rank {rank}: the sum is {found['value']:g}"
        if abs(found["value"] - found["right"]) > CLOSE:
            raise Mistake(
                said, f"{found['right']:g} is right: a wrong sum would be found without any guardrail"
            )
        if not found["same"]:
            hint = "it hands back another tensor, which a test with `is` finds: copy the sum into x, return x"
            raise Mistake(said, hint)
        if not found["guardrail"]:
            hint = "this eager path is in place, and the guardrail is content: go through a functional collective"
            raise Mistake(f"{said}, in x itself, with {found['operations']} dispatched", hint)
        if "went functional" not in found["guardrail"]:
            hint = "communicate once, through a functional collective: this fails for another reason"
            raise Mistake(f"{said}; the guardrail: {found['guardrail']}", hint)
    say(f"right sums in x itself on {len(seen)} ranks: tests of values and of `is` see nothing")
    say(f"the guardrail fails: {seen[0]['guardrail']}")


def _look_at_gate(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the attempt's sum, whether it is x, and what the guardrail says of it."""
    me = here()
    x = torch.full((4,), me.rank + 1.0, device=me.device)
    found: dict[str, Any] = {"none": False, "guardrail": "", "operations": 0}
    with torch.no_grad():
        y = attempt(x)
        if y is None:
            return {**found, "none": True}
        found |= {"value": float((y * 1)[0]), "same": y is x, "right": sum(range(1, me.world_size + 1))}
        again = torch.ones(4, device=me.device)
        try:
            found["operations"] = assert_in_place(lambda: attempt(again)).total()
        except AssertionError as error:
            found["guardrail"] = str(error)
    return found


# what a guardrail is tried on: (name, whether it has to fail)
_PATHS = (
    ("the gate", False),
    ("a late peer", False),
    ("in place, with other operations", False),
    ("functional", True),
    ("functional, copied back into x", True),
    ("no collective at all", True),
)
_HINTS = {
    "the gate": "the gate as it should be: a guardrail that cries here is switched off within a week",
    "a late peer": "in place, and slow today because a peer comes late: count operations, do not look at a clock",
    "in place, with other operations": "a layer computes around its collective: only functional ones are wrong",
    "functional": "every all_reduce here is functional: which names does `dispatched(call)` hold?",
    "functional, copied back into x": "same tensor, same sums, functional inside: only the dispatched operations tell",
    "no collective at all": "nothing communicates, so nothing is guarded: somebody took the all_reduce out",
}


def _judge_guard(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """AssertionError for paths that went functional or lost their collective, and silence for the others."""
    hint = "it is called as my_guardrail(call) with a function of no arguments"
    seen = list(on_ranks(ranks, _look_at_guard, attempt, hint=hint))
    for name, bad in _PATHS:
        for rank, found in enumerate(seen):
            said = found[name]
            where = f"{name}, rank {rank}: "
            if said["calls"] == 0:
                raise Mistake(
                    f"{where}it never calls what it is given", "run call() where its operations are counted"
                )
            if said["returned"] is False and not said["raised"]:
                hint = "it returns False, and a test that returns False passes: raise AssertionError"
                raise Mistake(f"{where}it returns False", hint)
            if said["raised"] != bad:
                raise Mistake(f"{where}it {'raises' if said['raised'] else 'is content'}", _HINTS[name])
        say(f"{name}: {'fails' if bad else 'passes'}, as it should")


def _look_at_guard(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the attempt at a guardrail on every path."""
    me = here()

    def late(x: Any) -> Any:
        if me.rank:
            time.sleep(0.1)
        return cliff.inplace(x)

    def copied(x: Any) -> Any:
        return x.copy_(cliff.functional(x))

    paths: dict[str, Callable[[Any], Any]] = {
        "the gate": cliff.gated,
        "a late peer": late,
        "in place, with other operations": lambda x: cliff.inplace(x * 2).add_(1).clone(),
        "functional": cliff.functional,
        "functional, copied back into x": copied,
        "no collective at all": lambda x: x * 1,
    }
    found = {}
    for name, path in paths.items():
        x = torch.zeros(2048, device=me.device)
        calls = 0

        def call(path: Any = path, x: Any = x) -> Any:
            nonlocal calls
            calls += 1
            return path(x)

        dist.barrier()
        returned, raised = None, False
        with torch.no_grad():
            try:
                returned = attempt(call)
            except AssertionError:
                raised = True
        dist.barrier()
        found[name] = {
            "raised": raised,
            "returned": returned if isinstance(returned, bool) else None,
            "calls": calls,
        }
    return found


BREAK = Exercise(
    "trap.break_the_gate",
    "break the gate",
    "easy",
    5,
    (
        "right sums, in the tensor that it was given, which it returns",
        "the guardrail fails, because the eager path went functional",
    ),
    _judge_broken,
)
GUARD = Exercise(
    "trap.guardrail",
    "the guardrail",
    "medium",
    10,
    (
        "no word about an eager path that is in place, however slow and whatever stands around it",
        "AssertionError for one that went functional, even where sums and tensor are the right ones",
        "AssertionError where no collective ran",
    ),
    _judge_guard,
)
