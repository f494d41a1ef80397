"""Conversion between the tensors that c10d hands over and the flat CPU tensors that the collectives move."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor


class FakeTensorGiven(Exception):
    """A collective was called with a fake tensor: torch is tracing, and there are no numbers to move."""


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor without its autograd history; as in c10d's own backends, autograd sees no collective.

    Raises:
        FakeTensorGiven: If torch is tracing.
        ValueError: If it is not a dense CPU tensor.
    """
    data = tensor.data
    if type(data) is not Tensor:
        if hasattr(data, "trigger_wait"):  # the result of a functional collective that nobody has waited for
            return plain(data.trigger_wait())
        if hasattr(data, "fake_mode"):
            raise FakeTensorGiven
        raise ValueError(f"shm moves plain tensors, got a {type(tensor).__name__}")
    if not data.is_cpu:
        raise ValueError(f"shm moves CPU tensors, got one on {tensor.device}: use nccl or gloo")
    if data.layout is not torch.strided or data.is_quantized:
        raise ValueError(f"shm moves dense tensors, got {tensor.dtype} in layout {tensor.layout}: use gloo")
    return data


def flat(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor as one row, to read: a view of a contiguous tensor, else a copy."""
    return plain(tensor).reshape(-1)


class Outputs:
    """A context that gives flat tensors to write into, one for each output tensor.

    An output that is not contiguous, or an inference tensor, gets a temporary tensor; when the block ends without an
    error, its numbers are copied into the output.

    Args:
        tensors: The output tensors.
        keep: Whether a temporary tensor starts with the numbers of its output, which the collective also reads.

    Raises:
        ValueError: If an output is not a dense CPU tensor, or its elements share memory.
    """

    def __init__(self, tensors: Sequence[Tensor], keep: bool = False):
        self.flat: list[Tensor] = []
        self._back: list[tuple[Tensor, Tensor]] = []
        for tensor in tensors:
            data = plain(tensor)
            if data.is_contiguous() and not data.is_inference():
                self.flat.append(data.view(-1))
                continue
            if any(step == 0 and length > 1 for step, length in zip(data.stride(), data.shape, strict=True)):
                raise ValueError("shm cannot write into an expanded tensor: its elements share memory")
            with torch.inference_mode(False):
                temporary = torch.empty(data.shape, dtype=data.dtype)
            if keep:
                temporary.copy_(data)
            self.flat.append(temporary.view(-1))
            self._back.append((data, temporary))

    def __enter__(self) -> list[Tensor]:
        return self.flat

    def __exit__(self, kind: Any, *error: object) -> None:
        for data, temporary in self._back if kind is None else ():
            # an inference tensor can be written in inference mode only
            with torch.inference_mode() if data.is_inference() else nullcontext():
                data.copy_(temporary)


def split(what: str, flat: Tensor, shape: Sequence[int], sizes: Sequence[int], n: int) -> list[Tensor]:
    """Split a flattened tensor into the rows for each rank.

    Args:
        what: What the tensor is called in an error: "input" or "output".
        flat: The flattened tensor.
        shape: Its shape before it was flattened.
        sizes: Number of rows for each rank; empty for equal parts.
        n: Number of ranks.

    Returns:
        A flat tensor for each rank.

    Raises:
        ValueError: If the sizes do not fit the shape, or the rows cannot be shared equally.

    >>> [t.tolist() for t in split("input", torch.arange(6), (3, 2), [1, 2], 2)]
    [[0, 1], [2, 3, 4, 5]]
    """
    rows = shape[0] if shape else 1
    if not sizes:
        if rows % n:
            raise ValueError(f"{what} has {rows} rows, which {n} ranks cannot share equally")
        sizes = [rows // n] * n
    if len(sizes) != n or sum(sizes) != rows:
        raise ValueError(f"{what} has {rows} rows for {n} ranks, but the split sizes are {list(sizes)}")
    row = flat.numel() // rows if rows else 0
    return list(flat.split_with_sizes([size * row for size in sizes]))
