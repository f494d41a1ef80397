"""A compile backend that keeps the graphs it is given, and bytes that tensors hold on this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from labkit import torch_compat

__all__ = ["Counting", "held"]


class Counting:
    """Keeps Dynamo's graphs, and with `aot` those of AOTAutograd, and runs them as they are.

    >>> import torch
    >>> seen = Counting()
    >>> x = torch.ones(2, requires_grad=True)
    >>> torch.compile(lambda x: x.sin().sum(), backend=seen)(x).backward()
    >>> len(seen.dynamo), len(seen.forward), len(seen.backward)
    (1, 1, 1)
    """

    def __init__(self, aot: bool = True) -> None:
        self.dynamo: list[Any] = []
        self.forward: list[Any] = []
        self.backward: list[Any] = []
        self._aot = torch_compat.aot_backend(self.forward, self.backward) if aot else None

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.dynamo.append(graph)
        return self._aot(graph, inputs) if self._aot else graph.forward


def held(tensors: Iterable[Any]) -> int:
    """Bytes of tensors on this rank: of a DTensor its own piece, of a memory that several share once.

    >>> import torch
    >>> x = torch.ones(4)
    >>> held([x, x.view(2, 2), torch.ones(2)])
    24
    """
    found = {}
    for tensor in tensors:
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = own.untyped_storage()
        found[storage.data_ptr(), storage.nbytes()] = storage.nbytes()
    return sum(found.values())
