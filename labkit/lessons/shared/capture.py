"""What the graphs of a compile say, for probes that look at them."""

from __future__ import annotations

import functools
from typing import Any

from labkit.graphs.capture import Capture

__all__ = ["Capture", "calls", "first_line"]


def calls(graph: Any) -> list[str]:
    """What a graph calls, in order, by short names: 'sin', '_c10d_functional.all_reduce'."""
    return [_short(n) for n in graph.graph.nodes if n.op in ("call_function", "call_method", "call_module")]


def _short(node: Any) -> str:
    target = node.target
    if isinstance(target, functools.partial):
        target = target.func
    name = target if isinstance(target, str) else str(target)
    if name.startswith("<"):
        name = getattr(target, "__name__", name)
    return name.removesuffix(".default").removeprefix("torch.ops.")


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, and its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160].rstrip(" :")
