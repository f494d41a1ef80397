"""Lesson 04, `cliff.gate`: one all-reduce that is in place in eager and functional when compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit import lessons
from labkit.graphs import record
from labkit.lessons.shared.harness import own_reduce
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["EXERCISE"]

cliff = lessons.program("cliff")

BLOCKS = 2
CLOSE = 1e-4


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Eager: in place and right. Compiled: one graph, no break, no copy back, and right."""
    hint = "it must take a tensor and return the sum over the ranks, in both modes"
    seen = on_ranks(ranks, _look, attempt, BLOCKS, hint=hint)[0]
    if seen["returned_none"]:
        raise Mistake("it returns None", "return the tensor: the layer goes on with what you return")
    eager = (
        f"eager: largest error {seen['eager_error']:.1e}, functional operations {seen['eager_functional']}"
    )
    if seen["eager_error"] > CLOSE:
        raise Mistake(eager, "in eager the sums are not the sum over all ranks")
    if seen["eager_functional"]:
        raise Mistake(eager, "eager pays for wrapping and allocating: take dist.all_reduce there")
    say(eager)
    regions = f"{seen['regions']} region{'s' * (seen['regions'] != 1)}"
    compiled = f"compiled: largest error {seen['error']:.1e}, {regions}, {seen['breaks']} breaks a forward"
    if seen["breaks"] or seen["regions"] != 1:
        raise Mistake(compiled, "something in your function hides it from the compiler")
    if seen["error"] > CLOSE:
        raise Mistake(compiled, "functional collectives return a new tensor: return that one")
    if seen["copies"]:
        raise Mistake(
            f"{compiled}, {seen['copies']} copy_ in the compiled graph",
            "an in-place call was rewritten with a copy back: call the functional form while compiling",
        )
    say(compiled)


def _look(attempt: Attempt, blocks: int) -> dict[str, Any]:
    """On a rank: what the attempt does in eager and compiled. Counts are per forward."""
    me = here()
    config = cliff.Config(dim=64, heads=2 * me.world_size, blocks=blocks, tokens=4)
    x = config.sample(device=me.device)
    whole = cliff.full(config)
    probe = attempt(torch.ones(2, device=me.device))
    found: dict[str, Any] = {"returned_none": probe is None}
    if probe is None:
        return found
    with torch.no_grad():
        expected = whole(config.sample()).to(me.device)
        model = with_own_code(cliff.shard(whole, me.rank, me.world_size, own_reduce(attempt)).to(me.device))
        with record() as rec:
            y = model(x)
            found["eager_error"] = float((y - expected).abs().max())
        names = rec.events["name"]
        found["eager_functional"] = int(names.str.startswith("_c10d_functional::all_reduce").sum())
        compiled = torch.compile(model)
        compiled(x)
        with record() as rec, rec.forward():
            y = compiled(x)
    found["error"] = float((y - expected).abs().max())
    counts = rec.counts().iloc[0]
    found["regions"], found["breaks"] = int(counts["regions"]), int(counts["breaks"])
    found["copies"] = copies(rec)
    return found


def copies(rec: Any) -> int:
    """How many `copy_` the graphs hold that ran in a record."""
    ran = rec.graphs[rec.graphs["calls"] > 0]
    lines = [line for code in ran["code"] for line in code.splitlines() if not line.lstrip().startswith("#")]
    return sum(".copy_(" in line for line in lines)


EXERCISE = Exercise(
    "cliff.gate",
    "the gate",
    "medium",
    10,
    (
        "right sums in both modes",
        "no functional operation in eager",
        "compiled, 1 region and 0 breaks a forward",
        "no `copy_` left in the graph",
    ),
    judge,
)
