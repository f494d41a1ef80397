"""Bytes that tensors hold on this rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["held"]


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
