"""Linear layers whose weight is split over the ranks: by output features, or by input features with a sum."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.lessons.shared.tensor_parallel.gate import Reduce, gated

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]


class ColumnParallelLinear(nn.Module):
    """A rank's share of the output features: (..., inputs) -> (..., outputs / world_size), no communication.

    The input is whole on every rank. With `parts` > 1 the full weight is that many matrices of `outputs` rows
    stacked (q, k and v, say); each is split on its own, and a rank's result holds its share of each in turn.
    Raises ValueError when `outputs` does not split evenly.

    >>> layer = ColumnParallelLinear(4, 6, world_size=2, rank=1)
    >>> layer.load(torch.arange(24.0).view(6, 4))
    >>> layer(torch.eye(4)[0])   # rows 3 to 5 of the weight
    tensor([12., 16., 20.])
    """

    def __init__(self, inputs: int, outputs: int, world_size: int = 1, rank: int = 0, parts: int = 1) -> None:
        super().__init__()
        split_evenly("outputs", outputs, world_size)
        self.world_size, self.rank, self.parts = world_size, rank, parts
        self.weight = nn.Parameter(torch.empty(parts * outputs // world_size, inputs), requires_grad=False)

    def load(self, whole: Tensor) -> None:
        """Copy this rank's rows out of the full weight, (parts * outputs, inputs)."""
        shares = whole.unflatten(0, (self.parts, self.world_size, -1))
        self.weight.copy_(shares[:, self.rank].flatten(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    """A rank's share of the input features: (..., inputs / world_size) -> (..., outputs), one all-reduce.

    Each rank multiplies its share and `reduce` adds up the partial results, so the output is whole on every
    rank. A world of one calls no `reduce`. Raises ValueError when `inputs` does not split evenly.

    >>> layer = RowParallelLinear(4, 2)
    >>> layer.load(torch.ones(2, 4))
    >>> layer(torch.arange(4.0))
    tensor([6., 6.])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        world_size: int = 1,
        rank: int = 0,
        reduce: Reduce = gated,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        split_evenly("inputs", inputs, world_size)
        self.world_size, self.rank = world_size, rank
        self.reduce = in_group(reduce, group)
        self.weight = nn.Parameter(torch.empty(outputs, inputs // world_size), requires_grad=False)

    def load(self, whole: Tensor) -> None:
        """Copy this rank's columns out of the full weight, (outputs, inputs)."""
        self.weight.copy_(whole.unflatten(1, (self.world_size, -1))[:, self.rank])

    def forward(self, x: Tensor) -> Tensor:
        partial = F.linear(x, self.weight)  # a fresh tensor, so `reduce` may work in place
        return partial if self.world_size == 1 else self.reduce(partial)


def in_group(reduce: Reduce, group: dist.ProcessGroup | None) -> Reduce:
    """`reduce` on `group`; as it is for the default group, so that a function of one argument will do."""
    return reduce if group is None else functools.partial(reduce, group=group)


def split_evenly(what: str, size: int, world_size: int) -> None:
    """Raise ValueError unless `size` splits into `world_size` equal shares."""
    if world_size < 1 or size % world_size:
        raise ValueError(f"{what}={size} cannot be split evenly over world_size={world_size}")
