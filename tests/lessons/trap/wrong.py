"""Plausible wrong answers to the exercises of lesson 05, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.utils._python_dispatch import TorchDispatchMode


def plain(x):
    dist.broadcast(x, 0)
    dist.all_reduce(x)
    return x * 2


def functional_everywhere(x):
    x = funcol.broadcast(x, 0, dist.group.WORLD)
    return funcol.all_reduce(x, "sum", dist.group.WORLD) * 2


def gates_both(x):
    return functional_everywhere(x) if torch.compiler.is_compiling() else plain(x)


def drops_the_result(x):
    if torch.compiler.is_compiling():
        funcol.broadcast(x, 0, dist.group.WORLD)
    else:
        dist.broadcast(x, 0)
    dist.all_reduce(x)
    return x * 2


def forgets_the_factor(x):
    return plain(x) / 2


GATE = {
    plain: "one of the two plain calls does not trace",
    functional_everywhere: "in eager both collectives are cheaper in place",
    gates_both: "leave its gate out",
    drops_the_result: "use its result",
    forgets_the_factor: "the sum over the ranks of rank 0's numbers",
}


class Guard(TorchDispatchMode):
    """Calls on; its subclasses say what they stop."""

    def stops(self, func) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not self.stops(func), f"functional: {func}"
        return func(*args, **(kwargs or {}))


class OnlyAllReduce(Guard):
    def stops(self, func):
        return func is torch.ops._c10d_functional.all_reduce.default


class EveryCollective(Guard):
    def stops(self, func):
        return "c10d" in str(func)


class DropsKeywords(Guard):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.namespace != "_c10d_functional"
        return func(*args)


class ReturnsNothing(Guard):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.namespace != "_c10d_functional"


class AtTheEnd(Guard):
    def __enter__(self):
        self.seen = []
        return super().__enter__()

    def stops(self, func):
        self.seen.append(func.namespace)
        return False

    def __exit__(self, *error):
        super().__exit__(*error)
        assert "_c10d_functional" not in self.seen


GUARD = {
    Guard: "the functional operators are those of",
    OnlyAllReduce: "look at the namespace",
    EveryCollective: "let it pass",
    DropsKeywords: "hand them on",
    ReturnsNothing: "stands in for the operation",
    AtTheEnd: "names the line of the call",
}

WRONG = {"trap.gate": GATE, "trap.guardrail": GUARD}
