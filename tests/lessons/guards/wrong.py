"""Plausible wrong answers to the exercises of lesson 09, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn


def _summed(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def on_the_module():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return _summed(x) * self.calls

    return Counter()


def read_back():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return _summed(x) * self.calls.item()

    return Counter()


def counts_afterwards():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            y = _summed(x) * self.calls
            self.calls += 1
            return y

    return Counter()


def no_module():
    return lambda x: x


def looks_at_the_last(run, stages):
    plain = run("plain")
    if torch.equal(run(stages[-1]), plain):
        return None
    return next(stage for stage in stages if not torch.equal(run(stage), plain))


def with_a_tolerance(run, stages):
    plain = run("plain")
    return next((s for s in stages if not torch.allclose(run(s), plain, equal_nan=True)), None)


def not_equal_to_itself(run, stages):
    plain = run("plain")
    return next((stage for stage in stages if not torch.equal(run(stage), plain)), None)


def the_last_one(run, stages):
    plain = run("plain")
    return next((stage for stage in reversed(stages) if not torch.equal(run(stage), plain)), None)


def always_one(run, stages):
    return stages[-1]


COUNTERS = {
    on_the_module: "each value a version",
    read_back: "ends the graph",
    counts_afterwards: "count first, then multiply",
    no_module: "returns a module",
}
BISECTIONS = {
    looks_at_the_last: "a later stage may hide",
    with_a_tolerance: "hides the smallest drift",
    not_equal_to_itself: "NaN is not equal to itself",
    the_last_one: "go through them in their order",
    always_one: "the answer is None",
}


WRONG = {"guards.counter": COUNTERS, "guards.bisect": BISECTIONS}
