"""Code for lesson 03 to be read: a block with breaks in it, a function of five graphs, three snippets to count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["SNIPPETS", "Snippet", "block", "tangled"]


def clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Scale a tensor down to a largest norm."""
    norm = x.norm()
    if norm > limit:
        x = x * (limit / norm)
    return x


def score(x: torch.Tensor) -> torch.Tensor:
    """The entropy of each row."""
    p = torch.softmax(x, -1)
    return -(p * torch.log(p)).sum(-1) / math.log(x.shape[-1])


def block(x: torch.Tensor) -> torch.Tensor:
    """Somebody else's block: which of its lines break?"""
    parts = []
    if x.shape[0] > 2:
        x = x - x.mean(0)
    for i in range(2):
        parts.append(x.roll(i, -1))
    y = torch.stack(parts).sum(0)
    y = clip(y, 3.0)
    kept = y[y.abs().sum(-1) > 0.5]
    return score(kept).sum() + y.mean(-1)


@torch.compiler.disable
def hidden_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum over ranks, hidden from the compiler."""
    y = x.clone()
    dist.all_reduce(y)
    return y


def tangled(x: torch.Tensor, quiet: bool = False) -> torch.Tensor:
    """Five graphs, each for its own reason."""
    y = x * 2
    if not quiet:
        print("summing", tuple(y.shape))
    y = y + 1
    y = hidden_sum(y)
    if y.sum() > 0:
        y = y.sqrt()
    else:
        y = y.abs()
    return y / y[y > 0].mean()


@torch.compiler.disable
def log(x: torch.Tensor) -> None:
    """Whatever a program may do beside its arithmetic."""


def unrolled(x: torch.Tensor) -> torch.Tensor:
    """A break in the body of a loop."""
    for _ in range(3):
        x = x + 1
        log(x)
        x = x * 2
    return x


def one_step(x: torch.Tensor) -> torch.Tensor:
    """A break between two operations."""
    x = x + 1
    log(x)
    return x * 2


def stepped(x: torch.Tensor) -> torch.Tensor:
    """The same break, behind a call."""
    for _ in range(3):
        x = one_step(x)
    return x


def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    """No break, and a Python number."""
    return x * n + 1


@dataclass(frozen=True)
class Snippet:
    """A function, the further arguments of each of its calls, and a hint for a wrong count."""

    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    hint: str


SNIPPETS = {
    "unrolled": Snippet(
        unrolled, ((),), "a break in a loop's own body cannot be resumed: the frame is given up"
    ),
    "stepped": Snippet(
        stepped, ((),), "the caller is given up, what it calls is compiled: once, however often it is called"
    ),
    "scaled": Snippet(
        scaled,
        ((2,), (3,), (4,)),
        "the first number is guarded; when it changes, the next graph takes any number",
    ),
}
