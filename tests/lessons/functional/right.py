"""Right answers to the exercises of lesson 02 in other words than those of the solutions."""

from __future__ import annotations

import torch
import torch.distributed as dist
from lessons.functional.wrong import Gather, Later


class SumsAndSlices(Gather):
    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()], None


class ExchangesAndSums(Gather):
    @staticmethod
    def backward(ctx, gradient):
        whole = gradient.movedim(ctx.dim, 0).contiguous()
        arrived = torch.empty_like(whole)
        dist.all_to_all_single(arrived, whole)
        parts = arrived.unflatten(0, (dist.get_world_size(), -1))
        return parts.sum(0).movedim(0, ctx.dim), None


class GathersAList(Gather):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts, dim)


class KnowsWhatHasArrived(Later):
    """Walks the arguments itself, and remembers by a flag."""

    def arrived(self):
        if not getattr(self, "there", False):
            self.wait()
            self.there = True
        return self.value

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def plain(a):
            if isinstance(a, (list, tuple)):
                return type(a)(map(plain, a))
            return a.arrived() if isinstance(a, cls) else a

        return func(*plain(args), **{name: plain(a) for name, a in (kwargs or {}).items()})


RIGHT = {
    "semantics.gather": (SumsAndSlices, ExchangesAndSums, GathersAList),
    "semantics.later": (Later, KnowsWhatHasArrived),
}
