"""RMSNorm over features that are split across the ranks: the mean square needs every rank's share."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.lessons.shared.tensor_parallel.gate import Reduce, gated
from labkit.lessons.shared.tensor_parallel.linear import in_group, split_evenly

__all__ = ["RMSNorm"]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, with the mean over all `dim` features: one small all-reduce.

    Takes and returns a rank's share, (..., dim / world_size). What travels is the sum of squares, one float32 a
    token. A world of one calls no `reduce` and equals torch.nn.RMSNorm. Raises ValueError when `dim` does not
    split evenly.

    >>> norm = RMSNorm(2, eps=0.0)
    >>> norm.load(torch.ones(2))
    >>> norm(torch.tensor([3.0, 3.0]))
    tensor([1., 1.])
    """

    def __init__(
        self,
        dim: int,
        world_size: int = 1,
        rank: int = 0,
        reduce: Reduce = gated,
        group: dist.ProcessGroup | None = None,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        split_evenly("dim", dim, world_size)
        self.dim, self.world_size, self.rank, self.eps = dim, world_size, rank, eps
        self.reduce = in_group(reduce, group)
        self.weight = nn.Parameter(torch.empty(dim // world_size), requires_grad=False)

    def load(self, whole: Tensor) -> None:
        """Copy this rank's share out of the full weight, (dim,)."""
        self.weight.copy_(whole.unflatten(0, (self.world_size, -1))[self.rank])

    def forward(self, x: Tensor) -> Tensor:
        if self.world_size == 1:
            return F.rms_norm(x, (self.dim,), self.weight, self.eps)
        squares = x.float().square().sum(-1, keepdim=True)  # fresh, so `reduce` may work in place
        scale = torch.rsqrt(self.reduce(squares) / self.dim + self.eps)
        return x * scale.to(x.dtype) * self.weight
