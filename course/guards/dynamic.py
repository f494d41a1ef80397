"""Whether a graph of Dynamo's is dynamic."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_dynamic"]


def is_dynamic(graph: torch.fx.GraphModule) -> bool:
    """Say whether the size of an input of a graph, or an input itself, is a symbol.

    Args:
        graph: as Dynamo gives it to a backend.

    >>> seen = []
    >>> def keep(graph, inputs):
    ...     seen.append(is_dynamic(graph))
    ...     return graph
    >>> _ = torch.compile(lambda x: x + 1, backend=keep, dynamic=True)(torch.ones(3))
    >>> seen
    [True]
    """
    symbols = (torch.SymInt, torch.SymFloat)
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        value: Any = node.meta.get("example_value")
        if isinstance(value, symbols):
            return True
        sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else ()
        if any(isinstance(size, symbols) for size in sizes):
            return True
        # a Python number that varies becomes an input, a tensor of one element
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False):
            return True
    return False
