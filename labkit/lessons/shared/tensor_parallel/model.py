"""A stack of blocks with seeded weights: the same full model, however many ranks it is split over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.lessons.shared.tensor_parallel.block import Block, Config
from labkit.lessons.shared.tensor_parallel.gate import Reduce, gated

__all__ = ["Model", "full", "shard"]


class Model(nn.Module):
    """One rank's shard of the model of `config`; with the default world of one, the whole model.

    Every rank's shard is cut from the same seeded full weights, one tensor at a time, so the outputs of all
    variants agree with each other and with the unsharded model up to the order of additions. Built for
    inference: the weights ask for no gradient. `reduce` is called as `reduce(x)` on partial sums that the layer
    owns, `config.collectives` times a forward (with `group=group` when a group is given), and never for a world
    of one. `weights` are full weights to use instead of the seeded ones, as `named_parameters` gives them.

    The forward calls the blocks from a Python loop. Where a block breaks the graph, Dynamo gives up the
    loop's frame and compiles each block's pieces on their own: the cliff that lesson 04 shows.

    Raises ValueError when the heads do not split evenly over `world_size` or `rank` is not in it.

    >>> model = Model(Config(dim=64, heads=2, blocks=2))
    >>> sum(p.numel() for p in model.parameters())
    98816
    """

    def __init__(
        self,
        config: Config,
        world_size: int = 1,
        rank: int = 0,
        reduce: Reduce = gated,
        group: dist.ProcessGroup | None = None,
        weights: Iterable[tuple[str, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        config.check_split(world_size, rank)
        self.config, self.world_size, self.rank = config, world_size, rank
        self.blocks = nn.ModuleList(
            Block(config, world_size, rank, reduce, group) for _ in range(config.blocks)
        )
        self.load(seeded(config) if weights is None else weights)
        self.eval()

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy this rank's shares out of full weights, given as (parameter name, tensor) pairs.

        Raises ValueError naming a parameter that has no full weight among them.
        """
        missing = {name for name, _ in self.named_parameters()}
        with torch.no_grad():
            for name, whole in weights:
                self.get_submodule(name.removesuffix(".weight")).load(whole)  # type: ignore[operator]
                missing.discard(name)
        if missing:
            raise ValueError(f"no full weight was given for {', '.join(sorted(missing))}")

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def full(config: Config) -> Model:
    """The whole model on one process: no group, no collective, the reference for every variant."""
    return Model(config)


def shard(
    model: Model, rank: int, world_size: int, reduce: Reduce = gated, group: dist.ProcessGroup | None = None
) -> Model:
    """Rank `rank`'s shard of a full model, whatever its weights are now.

    Raises ValueError when `model` is a shard itself, or does not split over `world_size`.

    >>> whole = full(Config(dim=64, heads=2, blocks=1))
    >>> shard(whole, rank=1, world_size=2).blocks[0].out.weight.equal(whole.blocks[0].out.weight[:, 32:])
    True
    """
    if model.world_size != 1:
        raise ValueError("the model is a shard already: cut shards from the full model")
    return Model(model.config, world_size, rank, reduce, group, model.named_parameters())


def seeded(config: Config) -> Iterator[tuple[str, Tensor]]:
    """The full weights by parameter name: seeded, on the CPU, the same for every world size and device.

    Each matrix keeps its input's scale, and the two that write to the residual stream are smaller by
    sqrt(2 * blocks), so that forty blocks neither blow up nor drown the numbers.
    """
    generator = torch.Generator().manual_seed(config.seed)
    dim, hidden = config.dim, config.dim * config.mlp_ratio
    matrices = {"qkv": (3 * dim, dim), "out": (dim, dim), "up": (hidden, dim), "down": (dim, hidden)}
    for i in range(config.blocks):
        for name in ("norm1", "q_norm", "k_norm", "norm2"):
            yield f"blocks.{i}.{name}.weight", 1 + 0.1 * torch.randn(dim, generator=generator)
        for name, (rows, columns) in matrices.items():
            scale = columns**-0.5 / ((2 * config.blocks) ** 0.5 if name in ("out", "down") else 1)
            yield f"blocks.{i}.{name}.weight", scale * torch.randn(rows, columns, generator=generator)
