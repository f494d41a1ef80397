"""What a rank runs: a call whose time is the work's, and a reader's function with code of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course.shared.variants import own
from labkit.ranks import here

__all__ = ["own_reduce", "settled"]


def settled(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call, which on a GPU also waits until the GPU is done: its time is the work's and not the launch's."""
    if here().device == "cpu":
        return call

    def run() -> Any:
        value = call()
        torch.cuda.synchronize()
        return value

    return run


def own_reduce(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A reader's plain function gets code of its own, as the model's modules do; a wrapped one stays as it is."""
    return reduce if hasattr(reduce, "_torchdynamo_disable") else own(reduce)
