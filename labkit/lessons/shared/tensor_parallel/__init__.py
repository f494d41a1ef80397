"""The model under study: a tensor-parallel transformer whose every block needs four all-reduces.

`Model(config, world_size, rank, reduce)` is one rank's shard; `reduce` is the function under study and may
be any of `inplace`, `disabled`, `functional`, `gated`, or one of your own that takes a tensor and returns
its sum over the ranks.

>>> import torch
>>> model = Model(Config(dim=64, heads=2, tokens=4, blocks=3))   # unsharded: no process group needed
>>> model(model.config.sample()).shape
torch.Size([1, 4, 64])
"""

from __future__ import annotations

from labkit.lessons.shared.tensor_parallel.block import Block, Config
from labkit.lessons.shared.tensor_parallel.gate import all_reduce, disabled, functional, gated, inplace
from labkit.lessons.shared.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from labkit.lessons.shared.tensor_parallel.model import Model, full, shard
from labkit.lessons.shared.tensor_parallel.norm import RMSNorm

__all__ = [
    "Block",
    "ColumnParallelLinear",
    "Config",
    "Model",
    "RMSNorm",
    "RowParallelLinear",
    "all_reduce",
    "disabled",
    "full",
    "functional",
    "gated",
    "inplace",
    "shard",
]
