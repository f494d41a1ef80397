"""Lesson 09, `guards.twelve`: twelve blocks of one class with a layer index, and none of them in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from oddrank.record import install

from labkit import lessons, torch_compat
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["twelve"]

DEPTHS = (12, 40)
TOLERANCE = 1e-5
VERSIONS = 2  # automatic dynamic may need a second value
# torch's, whatever the lesson has set before
LIMITS = {"recompile_limit": 8, "accumulated_recompile_limit": 256, "allow_unspec_int_on_nn_module": False}
FORM = (
    "it is called as my_compile(blocks) with an nn.ModuleList, changes or compiles its blocks in place, and returns "
    "None; FailOnRecompileLimitHit says that the limit is still in the way"
)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Two passes over twelve blocks and over forty: compiled code in each call, two versions, and eager's numbers."""
    most = 0
    for depth in DEPTHS:
        seen = on_ranks(ranks, _look, attempt, depth, hint=FORM)
        for rank, found in enumerate(seen):
            finding = f"{depth} blocks, rank {rank}: {found['compiles']} compiles, in eager: {found['eager'] or 'none'}"
            if found["error"] > TOLERANCE:
                raise Mistake(
                    f"{finding}; numbers differ from eager's by {found['error']:.2g}",
                    "each block has its own index: the index has to change with the block, not to become a constant",
                )
            if found["again"]:
                raise Mistake(f"{finding}; the second pass compiles", "a second pass has nothing new to see")
            if found["eager"]:
                raise Mistake(finding, _hint(depth, found))
            most = max(most, found["compiles"])
        say(f"{depth} blocks: {seen[0]['compiles']} compiles, no block in eager")
    if most > VERSIONS:
        raise Mistake(
            f"{most} compiles",
            "all run compiled code, yet each block compiles its own version at every start",
        )


def _hint(depth: int, found: dict[str, Any]) -> str:
    if len(found["eager"]) == depth:
        return "no block runs compiled code at all: call block.compile() on each"
    if depth > DEPTHS[0]:
        return "right for twelve blocks: a limit that is a number stays in the way of a deeper model"
    return "read the last reason: which value do all versions ask for, and has it to be a Python int?"


def _look(attempt: Attempt, depth: int) -> dict[str, Any]:
    code = lessons.program("guards")
    torch_compat.dynamo_reset()
    log = install()
    x = torch.linspace(-1, 1, 64).reshape(4, 16)
    with torch_compat.patched("dynamo.config", **LIMITS), torch.no_grad(), quiet_stderr():
        expected = x
        for block in code.stack(depth):
            expected = block(expected)
        blocks, entered = code.stack(depth), []
        known = {id(one) for one in log.compiles.tries.values()}
        stop = torch_compat.on_region_entry(lambda region: entered.append(region))
        try:
            attempt(blocks)
            made = []
            for _ in range(2):
                y, eager = x, []
                for i, block in enumerate(blocks, 1):
                    entered.clear()
                    y = block(y)
                    if not entered:
                        eager.append(i)
                made.append(sum(one.has_code for one in log.compiles.tries.values() if id(one) not in known))
        finally:
            stop()
            torch_compat.dynamo_reset()
    error = (y - expected).abs().max().item()
    return {"compiles": made[0], "again": made[1] - made[0], "eager": eager, "error": error}


twelve = Exercise(
    "guards.twelve",
    "twelve blocks, none in eager",
    "medium",
    10,
    ("each of 12 blocks runs compiled code", "each of 40, too", "at most two versions", "eager's numbers"),
    judge,
)
