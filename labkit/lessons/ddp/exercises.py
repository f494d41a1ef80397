"""Lesson 13: a loss for ranks with unequal batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["WEIGH"]

# how many images each rank has; the last case gives one rank none
BATCHES = (("equal batches", (4, 4)), ("fewer on rank 1", (6, 2)), ("none on rank 1", (5, 0)))


def judge_weigh(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients that DDP averages, for equal and unequal batches and an empty one."""
    hint = "it is called as my_loss(losses), the loss of each image of this rank; it returns one number to go back from"
    hints = (
        "of equal batches the mean over a rank's images is right: DDP averages over the ranks",
        "DDP averages over ranks as if all had as many images: weigh each rank by its share of them, which the ranks "
        "have to tell each other",
        "a rank without images calls the same collectives, and goes back from a loss of its own all the same",
    )
    for (said, sizes), why in zip(BATCHES, hints, strict=True):
        many = tuple(sizes[min(rank, 1)] for rank in range(ranks.world_size))
        for rank, found in enumerate(on_ranks(ranks, _weigh, attempt, many, hint=hint, timeout=60)):
            if found["kind"]:
                raise Mistake(f"{said}: my_loss returns {found['kind']}", hint)
            if not found["right"]:
                numbers = f"rank {rank} has the gradient {found['got']:.4g}, right is {found['want']:.4g}"
                raise Mistake(f"{said}: {numbers}", why)
        say(f"{said} ({', '.join(map(str, many))} images): the gradient of the mean over all images")


def _weigh(attempt: Attempt, many: tuple[int, ...]) -> dict[str, Any]:
    rank = dist.get_rank()
    values = torch.arange(1.0, sum(many) + 1).square()
    mine = values.split(list(many))[rank]
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    parallel = DistributedDataParallel(model)
    losses = parallel(mine[:, None])[:, 0]
    value = attempt(losses)
    if not isinstance(value, torch.Tensor):
        return {"kind": type(value).__name__}
    if value.dim():
        return {"kind": f"a tensor of shape {tuple(value.shape)}"}
    value.backward()
    assert model.weight.grad is not None
    got, want = float(model.weight.grad), float(values.mean())
    return {"kind": "", "right": abs(got - want) <= 1e-4 * want, "got": got, "want": want}


WEIGH = Exercise(
    "training.weigh",
    "ranks with unequal batches",
    "easy",
    10,
    ("under DDP, the gradient of the mean over the images of all ranks", "also where a rank has none"),
    judge_weigh,
)
