"""Right answers to the exercises of lesson 14 in other words than those of the solutions."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from lessons.fsdp.right_bucket import one_node_for_each_bucket, scheduled
from lessons.fsdp.wrong import _flat, _module, _sharded, _Steps, right
from torch import nn


def _scales_the_rows(self, rows):
    # divided before they are gathered, which takes no tensor of the whole size
    share = rows / dist.get_world_size()
    return funcol.all_gather_tensor(share + (rows - share).detach(), 0, dist.group.WORLD)


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / dist.get_world_size()


def _by_a_function(self, rows):
    return _Share.apply(funcol.all_gather_tensor(rows, 0, dist.group.WORLD))


def _average(flat):
    mine = torch.empty_like(flat.chunk(dist.get_world_size())[0])
    dist.reduce_scatter_tensor(mine, flat / dist.get_world_size())
    return mine


def divides_first(parameters, make):
    return _sharded(parameters, make, _average)


def frozen_in_the_vector(parameters, make):
    parameters, rank, size = list(parameters), dist.get_rank(), dist.get_world_size()
    piece = nn.Parameter(_flat(parameters).chunk(size)[rank].clone())
    optimizer = make([piece])

    def step():
        piece.grad = _average(_flat(torch.zeros_like(p) if p.grad is None else p.grad for p in parameters))
        optimizer.step()
        whole = piece.new_empty(size * len(piece))
        dist.all_gather_into_tensor(whole, piece.detach())
        with torch.no_grad():
            for p, new in zip(parameters, whole.split(_sizes(parameters, whole)), strict=False):
                p.copy_(new.view(p.shape))

    return _Steps(step)


def _sizes(parameters, whole):
    sizes = [p.numel() for p in parameters]
    return [*sizes, len(whole) - sum(sizes)]


RIGHT = {
    "fsdp.bucket": (scheduled, one_node_for_each_bucket),
    "fsdp.gather": (_module(_scales_the_rows), _module(_by_a_function)),
    "fsdp.optimizer": (right, divides_first, frozen_in_the_vector),
}
