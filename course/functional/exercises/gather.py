"""Lesson 02, `semantics.gather`: an all-gather with its backward, out of collectives that autograd does not see."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from labkit import torch_compat
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too

__all__ = ["gather"]

# the dimension to join along, and whether the loss is a plain sum: its gradient is one number, expanded
CASES = {"dim 0": (0, False), "dim 1": (1, False), "dim 0, a plain sum": (0, True)}
# what autograd or the backend says about a backward pass, and the hint for it
REFUSED = {
    "number of gradients": "backward returns a gradient for each argument of forward: None for `dim`",
    "invalid gradient": "the gradient of x has the shape of x: this rank's part, not the whole",
    "contiguous": "a gradient can be expanded or a view: make it contiguous before a collective gets it",
}

WHOLE = (
    " (every rank gets the whole sum and drops most of it: in a ring, a reduce_scatter moves half as much)"
)
# what a gradient is instead, and the hint for it
WRONG = {
    "": "compare it with the truth: sum the gradients of all ranks, and take the part of this rank",
    "its own loss": "every rank has joined your part into its own loss: sum over the ranks what comes back",
    "all losses, divided": "the loss is the sum over the ranks, not their mean: so is the gradient",
    "all losses, by rank 0's part": "the summed gradient is that of the whole: each rank takes another part of it",
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The joined tensor, and the gradient of the losses of all ranks, by one collective each."""
    hint = (
        "it is used as MyGather.apply(x, dim): forward gets ctx, x and dim, backward gets ctx and a gradient"
    )
    seen = list(on_ranks(ranks, _look, attempt, hint=hint))
    for case in CASES:
        found = [rank[case] for rank in seen]
        if any(rank["functional"] for rank in found):
            raise Mistake(
                f"{case}: it runs {found[0]['functional'][0]}",
                "that one has its backward already: build it out of all_gather_into_tensor and reduce_scatter_tensor",
            )
        if wrong := [rank["joined"] for rank in found if rank["joined"] != "right"]:
            hint = "the parts of all ranks, in the order of the ranks, one behind the other along `dim`"
            raise Mistake(f"{case}: the joined tensor is {wrong[0]}", hint)
        if error := found[0]["error"]:
            hints = [hint for words, hint in REFUSED.items() if words in error]
            raise Mistake(f"{case}, backward: {error}", (hints or ["look at what backward returns"])[0])
        same = set.intersection(*(rank["same as"] for rank in found))
        said = f"{case}: the gradient on each rank is that of {min(same, default='something else')}"
        if "all losses" not in same:
            raise Mistake(said, WRONG[min(same, default="")])
        said = f"{said}, by {', '.join(found[0]['in backward'])}"
        if any(len(rank["in backward"]) != 1 for rank in found):
            raise Mistake(
                said, "right, and by more collectives than one: one call sums and gives each rank its part"
            )
        say(f"{said}{WHOLE if 'all_reduce' in found[0]['in backward'] else ''}")


def _look(attempt: Any) -> dict[str, Any]:
    """On a rank: the attempt in each case."""
    with warnings.catch_warnings(action="ignore"):  # newer torch renames the collectives, and says so
        return {case: _look_at(attempt, dim, plain) for case, (dim, plain) in CASES.items()}


def _look_at(attempt: Any, dim: int, plain: bool) -> dict[str, Any]:
    """One case: what the attempt does, and the truth, which the rank computes alone."""
    me = here()
    heard: list[str] = []
    operators: list[str] = []

    def hear(name: str, group: Any) -> None:
        heard.append(name)

    def write_down(func: Any, args: Any, kwargs: Any) -> Any:
        operators.append(str(func))
        return func(*args, **kwargs)

    def loss(whole: Any, rank: int) -> Any:
        return (whole if plain else whole**2).sum() * (rank + 1.0)

    parts = [torch.arange(6.0, device=me.device).reshape(2, 3) + 7 * r for r in range(me.world_size)]
    x, whole = parts[me.rank].clone().requires_grad_(), torch.cat(parts, dim).requires_grad_()
    joined, error = "right", ""
    with torch_compat.on_eager_collective(hear), torch_compat.around_operators(write_down):
        y = attempt.apply(x, dim)
        if not isinstance(y, torch.Tensor) or y.shape != whole.shape:
            given = tuple(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
            joined = f"{given}, and {tuple(whole.shape)} is right"
        elif not torch.equal(y, whole):
            joined = "in another order"
        heard.clear()
        try:
            if joined == "right":
                loss(y, me.rank).backward()
        except RuntimeError as refused:
            if isinstance(refused, NotImplementedError):
                raise
            error = str(refused).splitlines()[0]
    own, total = (
        torch.autograd.grad(sum(loss(whole, rank) for rank in ranks), whole)[0].chunk(me.world_size, dim)
        for ranks in ([me.rank], range(me.world_size))
    )
    truths = {
        "all losses": total[me.rank],
        "its own loss": own[me.rank],
        "all losses, divided": total[me.rank] / me.world_size,
        "all losses, by rank 0's part": total[0],
    }
    return {
        "joined": joined,
        "error": error,
        "functional": [name for name in operators if name.startswith("_c10d_functional.")],
        "in backward": [name for name in heard if name != "get_world_size"],
        "same as": {n for n, truth in truths.items() if x.grad is not None and torch.equal(x.grad, truth)},
    }


gather = Exercise(
    "semantics.gather",
    "an all-gather with its backward",
    "medium",
    15,
    (
        "the parts of all ranks, joined along `dim`, by a collective of `torch.distributed`",
        "in eager, the gradient of the losses of all ranks, by one more",
    ),
    on_three_too(judge),
    takes="class",
)
