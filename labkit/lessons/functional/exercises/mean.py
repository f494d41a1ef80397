"""Lesson 02, `semantics.mean`: a mean over the ranks that gradients pass through, in eager and compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from labkit.contract.exchange import listed
from labkit.graphs import record
from labkit.lessons.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["EXERCISE"]

CLOSE = 1e-5


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The mean, its argument as it was, and the gradient of the whole loss on every rank, in both modes."""
    hint = "it is called as my_mean(x) with one tensor, and returns the mean over the ranks"
    seen = list(on_ranks(ranks, _look, attempt, hint=hint))
    for mode in ("eager", "compiled"):
        found = [rank[mode] for rank in seen]
        first = found[0]
        if first["none"]:
            raise Mistake("it returns None", "return the mean: the loss is computed from it")
        said = f"{mode}: the mean is {first['value']:g}"
        if first["error"]:
            raise Mistake(
                f"{mode}: {first['error']}",
                "it runs in eager only: what is in it that the compiler refuses?",
            )
        if any(abs(rank["value"] - rank["right"]) > CLOSE for rank in found):
            hint = f"{first['right']:g} is right: the sum over the ranks, divided by how many there are"
            raise Mistake(said, hint)
        if any(rank["changed"] for rank in found):
            raise Mistake(said, "the tensor that it is given belongs to the caller: leave it as it is")
        if refused := first["refused"]:
            raise Mistake(
                f"{said}, and the backward pass is refused: {refused}",
                "gradients pass through a functional sum only: make the mean out of one",
            )
        slopes = [rank["gradient"] for rank in found]
        said += f", the gradients are {listed([f'{slope:g}' for slope in slopes])}"
        if any(abs(rank["gradient"] - rank["right_gradient"]) > CLOSE for rank in found):
            right = f"{first['right_gradient']:g} on every rank is right"
            alone = all(abs(rank["gradient"] - rank["own_share"]) < CLOSE for rank in found)
            hint = "autograd did not see the collective, so each rank has its own share alone"
            raise Mistake(
                f"{said}; {right}", hint if alone else "something in it stops the gradient or scales it"
            )
        if first["graphs"] > 1:
            said += f", {first['graphs']} graphs"
            raise Mistake(
                said, "something in your function hides it from the compiler: it should be one graph"
            )
        say(said)


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: value and gradient of the attempt, in eager and compiled; ranks weigh their losses 1, 2, ..."""
    me, mine = here(), own_reduce(attempt)
    size, weight = me.world_size, me.rank + 1.0
    right = sum(range(1, size + 1)) / size

    def look(run: Callable[..., Any]) -> dict[str, Any]:
        given = torch.full((4,), weight, device=me.device, requires_grad=True)
        x = given * 1  # what an in-place collective may change without an error of autograd's
        found: dict[str, Any] = {"none": False, "error": "", "right": right}
        try:
            with record() as rec:
                y = run(x)
        except Exception as error:
            if run is mine:
                raise  # the reader's own lines say more
            return {**found, "error": str(error).splitlines()[0]}
        if y is None:
            return {**found, "none": True}
        found["value"] = y.detach()[0].item()
        found |= {"changed": bool((x.detach() != weight).any()), "refused": "", "gradient": 0.0}
        found |= {"right_gradient": right, "own_share": weight / size}
        found["graphs"] = int((rec.graphs["ops"] > 0).sum())
        try:
            (y * weight).sum().backward()
            found["gradient"] = given.grad[0].item() if given.grad is not None else 0.0
        except RuntimeError as error:  # what the backward pass of a collective says when it has none
            found["refused"] = str(error).splitlines()[0]
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # autograd's warning about a wrong gradient is what the hint is for
        return {"eager": look(mine), "compiled": look(torch.compile(mine, backend="aot_eager"))}


EXERCISE = Exercise(
    "semantics.mean",
    "a mean with a gradient",
    "easy",
    5,
    (
        "the mean over the ranks, its argument unchanged",
        "the gradient of the whole loss on every rank",
        "in eager, and compiled in 1 graph",
    ),
    judge,
)
