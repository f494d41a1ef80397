"""On a rank: the collectives of a step, the ranges that FSDP2 marks in it, and its gradients beside the right ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.torch_compat import quiet_profiler

__all__ = ["apart", "collectives", "ranges", "times_right"]

KINDS = {"gathers": "gather", "reduce-scatters": "reduce_scatter", "all-reduces": "allreduce"}


def _events(step: Callable[[], Any]) -> list[Any]:
    quiet_profiler()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as seen:
        step()
    return list(seen.events())


def collectives(step: Callable[[], Any]) -> dict[str, int]:
    """Count the collectives that a step starts: torch's profiler names each one 'c10d::...' (gloo, NCCL)."""
    names = [event.name for event in _events(step) if event.name.startswith("c10d::")]
    return {kind: sum(word in name for name in names) for kind, word in KINDS.items()}


def ranges(step: Callable[[], Any]) -> list[tuple[str, float, float]]:
    """List what FSDP2 marks in a step: a name such as 'FSDP::all_gather (blocks.0)', start and end in microseconds."""
    marked = [event for event in _events(step) if event.name.startswith("FSDP::")]
    return sorted(
        ((e.name, e.time_range.start, e.time_range.end) for e in marked), key=lambda one: (one[1], -one[2])
    )


def whole(tensor: Any) -> Tensor:
    """A DTensor gathered from all ranks; any other tensor as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def apart(model: nn.Module, right: Sequence[Tensor]) -> float:
    """How far gradients are from the right ones: the largest difference, relative to the largest one of its weight.

    It is nan where a gradient is, and inf where one is missing. All ranks have to call it.
    """
    found = []
    for parameter, expected in zip(model.parameters(), right, strict=True):
        got = torch.full_like(expected, float("inf")) if parameter.grad is None else whole(parameter.grad)
        found.append((got - expected).abs().max() / expected.abs().max())
    return float(torch.stack(found).max())  # max of a tensor: nan stays nan


def times_right(model: nn.Module, right: Sequence[Tensor]) -> float:
    """The number by which every right gradient has to be multiplied to give the model's; nan if there is none."""
    last = whole(list(model.parameters())[-1].grad)
    factor = float((last * right[-1]).sum() / right[-1].square().sum())
    return factor if apart(model, [factor * gradient for gradient in right]) < 1e-5 else float("nan")
