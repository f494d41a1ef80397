"""Plausible wrong answers to the exercises of lesson 02, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.utils._pytree import tree_map


class Gather(torch.autograd.Function):
    """Right; the others change one thing."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return gathered(x, dim)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.dim), None


def gathered(x, dim):
    given = x.movedim(dim, 0).contiguous()
    whole = given.new_empty(dist.get_world_size() * len(given), *given.shape[1:])
    dist.all_gather_into_tensor(whole, given)
    return whole.movedim(0, dim)


def scattered(gradient, dim):
    whole = gradient.movedim(dim, 0).contiguous()
    part = whole.new_empty(len(whole) // dist.get_world_size(), *whole.shape[1:])
    dist.reduce_scatter_tensor(part, whole)
    return part.movedim(0, dim)


class SlicesOnly(Gather):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()], None


class SumsOnly(Gather):
    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total, None


class TwoRanksOnly(Gather):
    @staticmethod
    def backward(ctx, gradient):
        whole = gradient.movedim(ctx.dim, 0).contiguous()
        part = whole.new_empty(len(whole) // 2, *whole.shape[1:])
        dist.reduce_scatter_tensor(part, whole)
        return part.movedim(0, ctx.dim), None


class OneReduceForEachRank(Gather):
    @staticmethod
    def backward(ctx, gradient):
        parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(), ctx.dim)]
        for rank, part in enumerate(parts):
            dist.reduce(part, rank)
        return parts[dist.get_rank()], None


class TakesTheFirstPart(Gather):
    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), ctx.dim)[0], None


class Averages(Gather):
    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.dim) / dist.get_world_size(), None


class DropsTheOthers(Gather):
    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.dim) * 0, None


class OneGradient(Gather):
    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.dim)


class AlongTheFirst(Gather):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return gathered(x, 0)


class OfTorch(Gather):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return funcol.all_gather_tensor(x, dim, dist.group.WORLD)


class Later(torch.Tensor):
    """Right; the others change one thing."""

    @staticmethod
    def __new__(cls, value, wait):
        self = torch.Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=value.device)
        self.value, self.wait = value, wait
        return self

    def arrived(self):
        if self.wait is not None:
            self.wait()
            self.wait = None
        return self.value

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda a: a.arrived() if isinstance(a, cls) else a, (args, kwargs or {}))
        return func(*args, **kwargs)


class NoTensor:
    def __init__(self, value, wait):
        self.value, self.wait = value, wait


class WaitsAtOnce(Later):
    @staticmethod
    def __new__(cls, value, wait):
        self = Later.__new__(cls, value, wait)
        self.arrived()
        return self


class WithoutDtype(Later):
    @staticmethod
    def __new__(cls, value, wait):
        self = torch.Tensor._make_wrapper_subclass(cls, value.shape)
        self.value, self.wait = value, wait
        return self


class AnotherShape(Later):
    @staticmethod
    def __new__(cls, value, wait):
        self = torch.Tensor._make_wrapper_subclass(cls, (1, *value.shape), dtype=value.dtype)
        self.value, self.wait = value, wait
        return self


class NeverWaits(Later):
    def arrived(self):
        return self.value


class TooLate(Later):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        y = func(*[a.value if isinstance(a, cls) else a for a in args], **(kwargs or {}))
        args[0].arrived()
        return y


class WrapsAgain(Later):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda a: a.arrived() if isinstance(a, cls) else a, (args, kwargs or {}))
        return cls(func(*args, **kwargs), lambda: None)


class WaitsEachTime(Later):
    def arrived(self):
        self.wait()
        return self.value


class NoLists(Later):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[a.arrived() if isinstance(a, cls) else a for a in args], **(kwargs or {}))


class NoKeywords(Later):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = tree_map(lambda a: a.arrived() if isinstance(a, cls) else a, args)
        return func(*args, **(kwargs or {}))


class DropsKeywords(Later):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*tree_map(lambda a: a.arrived() if isinstance(a, cls) else a, args))


class WaitsForTheFirst(Later):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        met = []

        def plain(a):
            if isinstance(a, cls):
                met.append(a)
                return a.arrived() if len(met) == 1 else a.value
            return a

        args, kwargs = tree_map(plain, (args, kwargs or {}))
        return func(*args, **kwargs)


GATHER = {
    SlicesOnly: "sum over the ranks what comes back",
    SumsOnly: "has the shape of x",
    TwoRanksOnly: "on three it is wrong",
    OneReduceForEachRank: "by more collectives than one",
    TakesTheFirstPart: "each rank takes another part of it",
    Averages: "not their mean",
    DropsTheOthers: "compare it with the truth",
    OneGradient: "None for `dim`",
    AlongTheFirst: "one behind the other along `dim`",
    OfTorch: "has its backward already",
}
LATER = {
    NoTensor: "make it with torch.Tensor._make_wrapper_subclass",
    WaitsAtOnce: "keep `wait` for the first operator",
    WithoutDtype: "are those of `value`",
    AnotherShape: "are those of `value`",
    NeverWaits: "is where to wait for them",
    TooLate: "wait first, then call the operator",
    WrapsAgain: "without wrapping it again",
    WaitsEachTime: "wait once",
    NoLists: "take its tensors in a list",
    NoKeywords: "take a tensor by keyword",
    DropsKeywords: "take a tensor by keyword",
    WaitsForTheFirst: "several tensors that are under way",
}


WRONG = {"semantics.gather": GATHER, "semantics.later": LATER}
