"""Right answers to the exercises of lesson 04 in other words than those of the solutions."""

from __future__ import annotations

import torch
from lessons.cliff.wrong import cliff


def without_where(x):
    for _ in range(8):
        x = cliff.functional(x / 2) + 1
        x = x * (1 - 0.5 * (x.max() > 6).float())
    return x


def in_place(x):
    for _ in range(8):
        x = cliff.inplace(x * 0.5) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def with_clamp():
    return {"rank": 2, "line": 22, "regions": 41, "fix": "self.peak = torch.clamp(top, min=self.peak)"}


def with_two_lines():
    fix = "old = torch.as_tensor(self.peak)\nself.peak = torch.where(top > old, top, old)"
    return {"rank": 2, "line": 22, "regions": 41, "fix": fix}


def with_floats():
    return {**with_clamp(), "regions": 205 / 5, "line": 22.0}


RIGHT = {
    "cliff.slow": (with_clamp, with_two_lines, with_floats),
    "cliff.loop": (without_where, in_place),
}
