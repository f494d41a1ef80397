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


def adds_up():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total += _summed(x)
            return self.total * 1

    return Counter()


def no_module():
    return lambda x: x


def _right():
    x = torch.ones(4, 8)
    return {
        "dtype": lambda f: f(x.double()),
        "layout": lambda f: f(torch.ones(8, 4).T),
        "gradient": lambda f: f(torch.ones(4, 8, requires_grad=True)),
        "columns": lambda f: f(x[:, :7]),
        "rows": lambda f: f(torch.ones(17, 8)),
        "steps": lambda f: f(x, steps=3),
        "mode": lambda f: f(x, mode=torch.float64),
        "state": torch.no_grad()(lambda f: f(x)),
    }


def rows_that_fit():
    return _right() | {"rows": lambda f: f(torch.ones(5, 8))}


def two_at_once():
    return _right() | {"gradient": lambda f: f(torch.ones(4, 8, requires_grad=True).double())}


def longer_rows():
    return _right() | {"columns": lambda f: f(torch.ones(4, 9))}


def two_that_are_not_named():
    return _right() | {"rows": lambda f: f(torch.ones(17, 8), steps=3)}


def one_is_missing():
    return {name: call for name, call in _right().items() if name != "mode"}


def a_list():
    return list(_right().values())


COUNTERS = {
    on_the_module: "each value a version",
    read_back: "ends the graph",
    adds_up: "the sums of all calls",
    counts_afterwards: "count first, then multiply",
    no_module: "returns a module",
}
READINGS = {
    rows_that_fit: "fits the whole list",
    two_at_once: "change one thing only",
    two_that_are_not_named: "change one thing only",
    longer_rows: "rows of another length",
    one_is_missing: "wants a call of its own",
    a_list: "returns a dict",
}


WRONG = {"guards.counter": COUNTERS, "guards.reading": READINGS}
