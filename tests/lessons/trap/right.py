"""Right answers to the exercises of lesson 05 in other words than those of the solutions."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from lessons.trap.wrong import Rungs, Wrapper, said, start


class Torchs(funcol.AsyncCollectiveTensor):
    """Derived from torch's own wrapper, with a dispatch of its own."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def read(arg):
            if isinstance(arg, cls):
                return arg.trigger_wait()
            return type(arg)(map(read, arg)) if isinstance(arg, list | tuple) else arg

        return func(*map(read, args), **{key: read(arg) for key, arg in (kwargs or {}).items()})


def from_torchs_wrapper():
    return {**Rungs.made(), "lazy": lambda x: Torchs(start(x))}


def with_other_calls():
    def copied(x):
        y = torch.empty_like(x).copy_(x)
        dist.all_reduce(y, async_op=True).wait()
        return y

    def operators(x):
        return torch.ops._c10d_functional.wait_tensor.default(start(x))

    return {"copied": copied, "operators": operators, "lazy": lambda x: Wrapper(start(x))}


class Step(torch.autograd.Function):
    """The step for training: the gradient of one process, where the job's loss is the sum of the ranks' losses."""

    @staticmethod
    def forward(ctx, x):
        if torch.compiler.is_compiling():
            x = funcol.wait_tensor(funcol.broadcast(x, 0, dist.group.WORLD)) * (1 + dist.get_rank())
            return funcol.wait_tensor(funcol.all_reduce(x, "sum", dist.group.WORLD)) * 2
        y = x.clone()
        dist.broadcast(y, 0)
        y *= dist.get_rank() + 1
        dist.all_reduce(y)
        return y * 2

    @staticmethod
    def backward(ctx, grad):
        n = dist.get_world_size()
        total = funcol.wait_tensor(funcol.all_reduce(grad.contiguous(), "sum", dist.group.WORLD))
        return total * n * (n + 1) * (dist.get_rank() == 0)


def trains(x):
    return Step.apply(x)


def refuses_by_an_assertion(x):
    assert not (torch.is_grad_enabled() and x.requires_grad), "for inference"
    if torch.compiler.is_compiling():
        y = funcol.broadcast(x, 0, dist.group.WORLD) + 0
    else:
        y = x.clone()
        dist.broadcast(y, src=0)
    y = y + y * dist.get_rank()
    dist.all_reduce(y)
    return y + y


def copies_first(x):
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("no gradient here")
    y = x.clone()
    if not torch.compiler.is_compiling():
        dist.broadcast(y, src=0)
    else:
        y.copy_(funcol.broadcast(y, 0, dist.group.WORLD))
    y.mul_(dist.get_rank() + 1)
    dist.all_reduce(y)
    return 2 * y


RIGHT = {
    "trap.gate": (refuses_by_an_assertion, trains, copies_first),
    "trap.rungs": (Rungs.made, from_torchs_wrapper, with_other_calls),
    "trap.reports": (said(), said(A=(1, "type", "wait before the call"))),
}
