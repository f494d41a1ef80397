"""Right answers to the exercises of lesson 03 in other words than those of the solutions."""

from __future__ import annotations


def nanmean(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / torch.where(y > 0, y, float("nan")).nanmean()


def plain_collective(x):
    import torch
    import torch.distributed as dist

    y = x * 2 + 1
    dist.all_reduce(y)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y * (y > 0).sum() / y.nan_to_num().sum()


RIGHT = {
    "reading.one": (nanmean, plain_collective),
}
