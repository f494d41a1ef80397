"""Right answers to the exercises of lesson 09 in other words than those of the solutions."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


def in_a_parameter():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = nn.Parameter(torch.zeros(1), requires_grad=False)

        def forward(self, x):
            self.calls.add_(1)
            y = x * self.calls
            dist.all_reduce(y)
            return y

    return Counter()


def other_calls():
    x = torch.zeros(6, 8)
    return {
        "dtype": lambda f: f(x.half(), 2),
        "layout": lambda f: f(torch.ones(4, 16)[:, ::2]),
        "gradient": lambda f: f(x.clone().requires_grad_(), mode=None),
        "columns": lambda f: f(x.narrow(1, 0, 5)),
        "rows": lambda f: f(torch.ones(1, 8)),
        "steps": lambda f: f(x, 1),
        "mode": lambda f: f(x=x, mode=torch.float32),
        "state": torch.no_grad()(lambda f: f(x)),
    }


RIGHT = {"guards.counter": (in_a_parameter,), "guards.reading": (other_calls,)}
