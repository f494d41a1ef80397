"""Plausible wrong answers to the exercises of lesson 05, each with words of the hint that is meant for it."""

from __future__ import annotations

import random
import statistics
import time

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


def loses_the_gradient(x):
    if torch.compiler.is_compiling():
        x = funcol.broadcast(x, 0, dist.group.WORLD)
    else:
        dist.broadcast(x, 0)
    dist.all_reduce(x)
    return x * 2


def refuses_in_eager_only(x):
    if not torch.compiler.is_compiling() and x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("for inference")
    return loses_the_gradient(x)


def without_grad(x):
    with torch.no_grad():
        return loses_the_gradient(x)


GATE = {
    loses_the_gradient: "raise an error",
    refuses_in_eager_only: "raise an error",
    without_grad: "raise an error",
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


class ThreeNames(Guard):
    def stops(self, func):
        op = torch.ops._c10d_functional
        return func in (op.all_reduce.default, op.all_gather_into_tensor.default, op.wait_tensor.default)


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
    ThreeNames: "a list of names misses some",
    EveryCollective: "let it pass",
    DropsKeywords: "hand them on",
    ReturnsNothing: "stands in for the operation",
    AtTheEnd: "names the line of the call",
}


class Loop:
    """Right; the others change one thing."""

    warmup = 1
    middle = staticmethod(statistics.median)

    def order(self, names, n):
        return names[n % len(names) :] + names[: n % len(names)]

    def settle(self, y):
        torch.cuda.synchronize() if y.is_cuda else y.flatten()[0].item()

    def time(self, call, n):
        dist.barrier()
        began = time.perf_counter()
        self.settle(call())
        return time.perf_counter() - began

    def over_ranks(self, seconds):
        dist.all_reduce(seconds, dist.ReduceOp.MAX)

    def __call__(self, variants, rounds):
        from labkit.ranks import here

        names, found = list(variants), []
        for _ in range(self.warmup):
            for call in variants.values():
                call()
        for n in range(rounds):
            took = {name: self.time(variants[name], n) for name in self.order(names, n)}
            seconds = torch.tensor([took[name] for name in names], dtype=torch.double, device=here().device)
            self.over_ranks(seconds)
            found.append((seconds / seconds[0]).tolist())
        return {
            name: self.middle(ratios) for name, ratios in zip(names, zip(*found, strict=True), strict=True)
        }


def right(variants, rounds):
    return Loop()(variants, rounds)


def not_warm(variants, rounds):
    class Changed(Loop):
        warmup = 0

    return Changed()(variants, rounds)


def one_after_the_other(variants, rounds):
    found = {}
    for name, call in variants.items():
        call()
        found[name] = statistics.median(Loop().time(call, n) for n in range(rounds))
    return {name: seconds / found["first"] for name, seconds in found.items()}


def always_the_same_order(variants, rounds):
    class Changed(Loop):
        def order(self, names, n):
            return names

    return Changed()(variants, rounds)


def an_order_of_its_own(variants, rounds):
    draw = random.Random(dist.get_rank())

    class Changed(Loop):
        def order(self, names, n):
            return draw.sample(names, len(names))

    return Changed()(variants, rounds)


def no_barrier(variants, rounds):
    class Changed(Loop):
        def time(self, call, n):
            began = time.perf_counter()
            self.settle(call())
            return time.perf_counter() - began

    return Changed()(variants, rounds)


def barrier_in_the_time(variants, rounds):
    class Changed(Loop):
        def time(self, call, n):
            began = time.perf_counter()
            dist.barrier()
            self.settle(call())
            return time.perf_counter() - began

    return Changed()(variants, rounds)


def until_it_returns(variants, rounds):
    class Changed(Loop):
        def settle(self, y):
            pass

    return Changed()(variants, rounds)


def settled_too_late(variants, rounds):
    class Changed(Loop):
        def time(self, call, n):
            dist.barrier()
            began = time.perf_counter()
            y = call()
            seconds = time.perf_counter() - began
            self.settle(y)
            return seconds

    return Changed()(variants, rounds)


def on_its_own(variants, rounds):
    class Changed(Loop):
        def over_ranks(self, seconds):
            dist.barrier()

    return Changed()(variants, rounds)


def mean_of_the_ranks(variants, rounds):
    class Changed(Loop):
        def over_ranks(self, seconds):
            dist.all_reduce(seconds)

    return Changed()(variants, rounds)


def mean_of_the_rounds(variants, rounds):
    class Changed(Loop):
        middle = staticmethod(statistics.fmean)

    return Changed()(variants, rounds)


def smallest_of_the_rounds(variants, rounds):
    class Changed(Loop):
        middle = staticmethod(min)

    return Changed()(variants, rounds)


def _in_each_round(variants, rounds, of_a_round):
    for call in variants.values():
        call()
    loop, names, found = Loop(), list(variants), []
    for n in range(rounds):
        took = {name: loop.time(variants[name], n) for name in loop.order(names, n)}
        found.append(of_a_round(torch.tensor([took[name] for name in names], dtype=torch.double)))
    return names, torch.stack(found).median(dim=0).values


def _slowest(seconds):
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds


def ratio_of_medians(variants, rounds):
    names, seconds = _in_each_round(variants, rounds, _slowest)
    return dict(zip(names, (seconds / seconds[0]).tolist(), strict=True))


def largest_ratio_of_a_rank(variants, rounds):
    names, ratios = _in_each_round(variants, rounds, lambda seconds: _slowest(seconds / seconds[0]))
    return dict(zip(names, ratios.tolist(), strict=True))


def seconds_of_all_rounds(variants, rounds):
    class Changed(Loop):
        middle = staticmethod(list)

    return Changed()(variants, rounds)


MEASURE = {
    not_warm: "before anything is timed",
    one_after_the_other: "call each of them in each round",
    always_the_same_order: "turn the order",
    an_order_of_its_own: "would meet that of another one",
    no_barrier: "come to a call at different times",
    barrier_in_the_time: "the clock starts before the barrier",
    until_it_returns: "the device works on",
    on_its_own: "each rank has timed itself",
    mean_of_the_ranks: "take the slowest",
    mean_of_the_rounds: "moves a mean",
    smallest_of_the_rounds: "the smallest ratio",
    ratio_of_medians: "divide within each round",
    largest_ratio_of_a_rank: "ratios of single ranks",
    seconds_of_all_rounds: "return a dict",
}

WRONG = {"trap.gate": GATE, "trap.guardrail": GUARD, "trap.measure": MEASURE}
