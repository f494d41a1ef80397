"""The model that every route trains, whole or a tensor-parallel shard of it, its weights the same in all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit import lessons
from labkit.lessons.shared.options import whole as whole_numbers
from labkit.lessons.shared.training import CLASSES, PIXELS

__all__ = ["Block", "Model", "Sizes", "whole"]

cliff = lessons.program("cliff")


@dataclass(frozen=True)
class Sizes:
    """How large the model is: the width between blocks, the width inside one, and how many blocks there are.

    Raises ValueError for a size that is not a whole number above 0.

    >>> Sizes(width=8, hidden=16, blocks=2).parameters
    1104
    """

    width: int = 64
    hidden: int = 128
    blocks: int = 2

    def __post_init__(self) -> None:
        whole_numbers(**vars(self))

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return self.width * (PIXELS + CLASSES) + 2 * self.width * self.hidden * self.blocks


class Block(nn.Module):
    """x + down(relu(up(x))); in a group of several ranks `up` is split by rows, `down` by columns with a sum."""

    def __init__(
        self,
        sizes: Sizes,
        ranks: int = 1,
        rank: int = 0,
        reduce: Callable[..., Tensor] = cliff.functional,
        group: Any = None,
    ):
        super().__init__()
        if ranks == 1:  # plain linear layers, which DDP, FSDP2 and DTensor's plans know
            self.up: nn.Module = nn.Linear(sizes.width, sizes.hidden, bias=False)
            self.down: nn.Module = nn.Linear(sizes.hidden, sizes.width, bias=False)
        else:
            self.up = cliff.ColumnParallelLinear(sizes.width, sizes.hidden, ranks, rank)
            self.down = cliff.RowParallelLinear(sizes.hidden, sizes.width, ranks, rank, reduce, group)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    """(batch, 64) -> (batch, 10): a linear layer, blocks, a linear layer; no bias anywhere.

    ranks, rank: of the tensor-parallel group; the first and the last layer are whole on every rank of it.

    >>> Model(Sizes(8, 16, 1))(torch.zeros(3, 64)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        sizes: Sizes,
        ranks: int = 1,
        rank: int = 0,
        reduce: Callable[..., Tensor] = cliff.functional,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(PIXELS, sizes.width, bias=False)
        self.blocks = nn.ModuleList(Block(sizes, ranks, rank, reduce, group) for _ in range(sizes.blocks))
        self.head = nn.Linear(sizes.width, CLASSES, bias=False)
        with torch.no_grad():
            for name, tensor in whole(sizes).items():
                module = self.get_submodule(name.removesuffix(".weight"))
                if isinstance(module, nn.Linear):
                    module.weight.copy_(tensor)
                else:
                    module.load(tensor)  # type: ignore[operator]
        self.requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def whole(sizes: Sizes) -> dict[str, Tensor]:
    """The weights before training, unsharded, by the names that `Model` gives them; float32, from a fixed seed.

    >>> list(whole(Sizes(8, 16, 1)))
    ['first.weight', 'blocks.0.up.weight', 'blocks.0.down.weight', 'head.weight']
    """
    shapes = {"first.weight": (sizes.width, PIXELS)}
    for i in range(sizes.blocks):
        shapes[f"blocks.{i}.up.weight"] = (sizes.hidden, sizes.width)
        shapes[f"blocks.{i}.down.weight"] = (sizes.width, sizes.hidden)
    shapes["head.weight"] = (CLASSES, sizes.width)
    seeded = torch.Generator().manual_seed(13)
    return {name: torch.randn(s, generator=seeded) / s[1] ** 0.5 for name, s in shapes.items()}
