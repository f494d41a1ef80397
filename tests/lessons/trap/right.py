"""Right answers to the exercises of lesson 05 in other words than those of the solutions."""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist
from lessons.trap.wrong import Guard, Loop, right
from torch.utils._python_dispatch import TorchDispatchMode


def gathers_and_compares(variants, rounds):
    class Changed(Loop):
        warmup = 3

        def over_ranks(self, seconds):
            everyone = [torch.empty_like(seconds) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, seconds)
            seconds.copy_(torch.stack(everyone).amax(0))

        middle = staticmethod(lambda ratios: sorted(ratios)[len(ratios) // 2])

    return Changed()(variants, rounds)


def back_and_forth(variants, rounds):
    class Changed(Loop):
        def order(self, names, n):
            return names[:: 1 - 2 * (n % 2)]

        middle = staticmethod(statistics.median_low)

    return Changed()(variants, rounds)


class ByItsName(Guard):
    def stops(self, func):
        return str(func).startswith("_c10d_functional.")


class Raises(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace.startswith("_c10d_functional"):
            raise AssertionError(f"{func} in eager")
        return func(*args, **(kwargs or {}))


RIGHT = {
    "trap.measure": (right, gathers_and_compares, back_and_forth),
    "trap.guardrail": (ByItsName, Raises),
}
