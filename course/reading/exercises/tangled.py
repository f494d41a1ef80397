"""Lesson 03, `reading.one`: a function of five graphs, each for its own reason, made one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from oddrank.record import record
from oddrank.stages import inspect

from course.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["one", "tangled"]

CLOSE = 1e-5
NO_ROOT = "where the sum is not above 0, `tangled` takes abs(), no square root"
MEAN = (
    "the mean of `tangled` is over the numbers above 0 alone: choose them with torch.where. NaN times 0 is NaN, so a "
    "product with a mask does not keep NaN out of the sum"
)


def tangled(x: torch.Tensor) -> torch.Tensor:
    """What is to be rewritten, without its print and its `disable`: what the attempt has to agree with."""
    y = x * 2 + 1
    dist.all_reduce(y)
    y = y.sqrt() if y.sum() > 0 else y.abs()
    return y / y[y > 0].mean()


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The same numbers and the same collective, in one graph without a break on every rank."""
    seen = list(on_ranks(ranks, _look, attempt, hint="it is called as my_tangled(x) with one tensor"))
    if any(found["none"] for found in seen):
        raise Mistake("it returns None", "return the tensor: the caller goes on with what you return")
    worst = max(max(found["errors"].values()) for found in seen)
    if not worst <= CLOSE:
        raise Mistake(*_difference(seen[0], worst))
    if any(found["collectives"] != 1 for found in seen):
        said = f"{seen[0]['collectives']} collectives a call"
        raise Mistake(said, "the ranks have to add up once: without that it is another program")
    say(f"same numbers (largest error {worst:.1e}), 1 collective a call")
    for rank, found in enumerate(seen):
        graphs, reasons = found["graphs"], found["reasons"]
        said = f"compiled, rank {rank}: {graphs} graph{'s' * (graphs != 1)}, {len(reasons)} breaks"
        if reasons:
            raise Mistake(f"{said}; the first: {reasons[0]}", _hint(reasons))
        if graphs != 1:
            raise Mistake(
                said, "it was compiled more than once: does it depend on a Python value that changes?"
            )
    say("compiled: 1 graph, 0 breaks on every rank")


def _difference(found: dict[str, Any], worst: float) -> tuple[str, str]:
    """What is not as `tangled` has it, and the hint for it."""
    if found["shape"]:
        return f"the result has shape {found['shape']}", "the shape of the result is that of x"
    wrong = [name for name, error in found["errors"].items() if not error <= CLOSE]
    nan = found["nan"]
    said = f"largest error {worst:.1e} on inputs {', '.join(wrong)}"
    if nan:
        said += f"; NaN where `tangled` has a number on {', '.join(nan)}"
    if {"positive", "small"} & set(wrong):
        return (
            said,
            f"the numbers are not those of `tangled`, on {len(wrong)} of {len(found['errors'])} inputs",
        )
    if "mixed above 0" in wrong and not nan:
        return said, "`tangled` chooses once for all numbers, by their sum: the square root or abs()"
    return said, NO_ROOT if "mixed below 0" in wrong or "negative" in nan else MEAN


def _hint(reasons: list[str]) -> str:
    text = " ".join(reasons).lower()
    hints = {
        "print": "a print breaks: take it out, or print what the function returns",
        "disable": "the collective is hidden from the compiler: call it without `disable`, or its functional form",
        "branch": "a Python `if` on a tensor's values breaks: choose between two tensors with torch.where",
        "dynamic shape": "how many values `y[y > 0]` has depends on them: keep the shape, choose with torch.where, and "
        "count with a mask",
        "graph_break": "somebody asked for that one: take torch._dynamo.graph_break() out",
    }
    return next(
        (hint for word, hint in hints.items() if word in text), "read frames.breaks: each has its own hint"
    )


def _look(attempt: Attempt) -> dict[str, Any]:
    me = here()
    mine = own_reduce(attempt)
    eight = torch.arange(1.0, 9.0, device=me.device)
    inputs = {
        "positive": eight + me.rank,
        "negative": me.rank - eight,
        "small": 0.25 * eight + me.rank,
        "mixed above 0": eight - 3.25 + me.rank,
        "mixed below 0": 3.25 - eight + me.rank,
    }
    found: dict[str, Any] = {"none": False, "shape": (), "errors": {}, "nan": []}
    for name, x in inputs.items():
        expected = tangled(x.clone())
        rec, y = _called(mine, x)
        if y is None:
            return {**found, "none": True}
        if y.shape != expected.shape:
            return {**found, "shape": tuple(y.shape), "errors": {name: float("inf")}}
        # a square root of a number below 0 is NaN, in `tangled` too
        same = (y == expected) | (y.isnan() & expected.isnan())
        found["errors"][name] = float(
            (y - expected).abs().masked_fill(same, 0).nan_to_num(float("inf")).max()
        )
        if bool((y.isnan() & ~expected.isnan()).any()):
            found["nan"].append(name)
        found["collectives"] = rec.counts[0].collectives
    frames = inspect(torch.compile(mine, backend="eager"), inputs["positive"].clone(), fresh=True)
    found["graphs"] = len(frames.graphs)
    found["reasons"] = [graph_break.name for graph_break in frames.breaks]
    return found


def _called(mine: Callable[..., Any], x: torch.Tensor) -> tuple[Any, Any]:
    """The record and the result of one call; compiled, where torch.cond takes a collective's result only so."""
    try:
        with record() as rec:
            y = mine(x.clone())
        return rec, y
    except NotImplementedError as refused:
        if "AsyncCollectiveTensor" not in str(refused):
            raise
    compiled = torch.compile(mine, backend="eager")
    with record() as rec:
        y = compiled(x.clone())
    return rec, y


one = Exercise(
    "reading.one",
    "five graphs made one",
    "medium",
    12,
    ("the same numbers as `tangled`", "1 collective a call", "compiled, 1 graph and 0 breaks on every rank"),
    judge,
)
