"""A transformer block split over the ranks, with four all-reduces; forty of them make the source's 160."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.lessons.shared.tensor_parallel.gate import Reduce, gated
from labkit.lessons.shared.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear, split_evenly
from labkit.lessons.shared.tensor_parallel.norm import RMSNorm

__all__ = ["COLLECTIVES", "Block", "Config"]

COLLECTIVES = ("q-norm", "k-norm", "attention output", "MLP output")
"""The all-reduces of one block, in the order they run."""
MOST = {"dim": 65_536, "heads": 65_536, "blocks": 1000, "mlp_ratio": 64, "tokens": 65_536}


@dataclass(frozen=True)
class Config:
    """The size of a model. Raises ValueError naming the rule that a size breaks.

    `tokens` is the length of the sequence that `sample` makes; the model takes any.

    >>> Config(blocks=40).collectives
    160
    >>> Config(dim=64, heads=3)
    Traceback (most recent call last):
    ValueError: heads must divide dim: dim=64, heads=3
    """

    dim: int = 128
    heads: int = 4
    blocks: int = 40
    mlp_ratio: int = 4
    tokens: int = 16
    eps: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ValueError(f"{name} must be a whole number from 1 to {most}, got {value!r}")
        if self.dim % self.heads:
            raise ValueError(f"heads must divide dim: dim={self.dim}, heads={self.heads}")
        if not self.eps > 0:
            raise ValueError(f"eps must be above 0, got {self.eps!r}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def collectives(self) -> int:
        """All-reduces in one forward of a model that is split over two or more ranks."""
        return len(COLLECTIVES) * self.blocks

    def check_split(self, world_size: int, rank: int) -> None:
        """Raise ValueError unless this model splits over `world_size` ranks and has a shard for `rank`."""
        split_evenly("heads", self.heads, world_size)
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank must be from 0 to {world_size - 1} for world_size={world_size}, got {rank}"
            )

    def sample(
        self, batch: int = 1, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The same seeded input on every rank: (batch, tokens, dim)."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(batch, self.tokens, self.dim, generator=generator).to(device, dtype)


class Block(nn.Module):
    """Attention and MLP of one layer, (batch, tokens, dim) -> the same, whole on every rank.

    A rank holds heads / world_size heads and as large a share of the MLP. It adds up with its peers four times:

    1. q-norm and 2. k-norm: the norm runs over all heads' features at once, of which a rank has only its own;
    3. attention output and 4. MLP output: each rank's share of the projection is a partial sum.

    This is the layout behind the ~160 collectives a forward of topic 11: `scope-drd` reduces in its row-parallel
    linear (linear.py) and in its RMSNorm (rmsnorm.py). Raises ValueError when the heads do not split evenly.
    """

    def __init__(
        self,
        config: Config,
        world_size: int = 1,
        rank: int = 0,
        reduce: Reduce = gated,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        config.check_split(world_size, rank)
        dim, hidden, eps = config.dim, config.dim * config.mlp_ratio, config.eps
        self.head_dim = config.head_dim
        self.norm1 = RMSNorm(dim, eps=eps)  # whole on every rank: nothing to add up
        self.qkv = ColumnParallelLinear(dim, dim, world_size, rank, parts=3)
        self.q_norm = RMSNorm(dim, world_size, rank, reduce, group, eps)
        self.k_norm = RMSNorm(dim, world_size, rank, reduce, group, eps)
        self.out = RowParallelLinear(dim, dim, world_size, rank, reduce, group)
        self.norm2 = RMSNorm(dim, eps=eps)
        self.up = ColumnParallelLinear(dim, hidden, world_size, rank)
        self.down = RowParallelLinear(hidden, dim, world_size, rank, reduce, group)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        by_head = (batch, tokens, -1, self.head_dim)
        q = self.q_norm(q).view(by_head).transpose(1, 2)
        k = self.k_norm(k).view(by_head).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v.view(by_head).transpose(1, 2))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))
