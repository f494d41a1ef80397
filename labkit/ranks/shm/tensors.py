"""From the tensors that c10d hands over to the flat, plain ones that the collectives move, and back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor


class FakeTensorGiven(Exception):
    """Torch is only tracing: there are no numbers to move."""


def plain(tensor: Tensor) -> Tensor:
    """The tensor without its autograd history: as with c10d's own backends, autograd sees nothing of a collective.

    Raises ValueError for what is not a dense CPU tensor.
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
    """A flat tensor with the numbers of `tensor`, to read: a view where it is contiguous, else a copy."""
    return plain(tensor).reshape(-1)


class Outputs:
    """Flat tensors to write, standing for `tensors`; `done()` brings their numbers into those that are no plain row.

    keep: the tensors are read too.
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

    def done(self) -> None:
        for data, temporary in self._back:
            # an inference tensor can be written in inference mode only
            with torch.inference_mode() if data.is_inference() else nullcontext():
                data.copy_(temporary)


def same(op: str, what: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    """Raise ValueError, before any peer is involved, unless each of `tensors` has the size and dtype of `like`."""
    for i, tensor in enumerate(tensors):
        if tensor.numel() != like.numel() or tensor.dtype != like.dtype:
            raise ValueError(
                f"{op} over shm moves parts of one size: {what} {i} holds {tensor.numel()} elements of {tensor.dtype}, "
                f"it must hold {like.numel()} of {like.dtype}"
            )


def split(what: str, flat: Tensor, shape: Sequence[int], sizes: Sequence[int], n: int) -> list[Tensor]:
    """The rows of a flattened tensor of `shape` for each of `n` ranks: `sizes` rows, or as many for each.

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
