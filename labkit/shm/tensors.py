"""Conversion between the tensors that c10d hands over and the flat CPU tensors that go through the slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.shm.segment import SLOT_BYTES


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
    if data.layout is not torch.strided:
        raise ValueError(f"shm moves dense tensors, got layout {tensor.layout}: use gloo")
    return data


def flat(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor as one row, to read: a view of a contiguous tensor, else a copy."""
    return plain(tensor).reshape(-1)


class Outputs:
    """A context that gives flat tensors to write into: views of the outputs, or copies where no view can be written.

    When the block ends without an error, the copies are written back.

    Args:
        tensors: The outputs, as c10d hands them over.
        shaped: Whether one that goes through in one piece may keep its shape: a view takes as long as copying it.

    Raises:
        ValueError: If an output is not a dense CPU tensor, or its elements share memory.
    """

    __slots__ = ("_back", "_rows")

    def __init__(self, tensors: Sequence[Tensor], shaped: bool = False):
        self._rows: list[Tensor] = []
        self._back: list[tuple[Tensor, Tensor]] = []
        for tensor in tensors:
            data = plain(tensor)
            # only the inference mode may write into an inference tensor
            if data.is_contiguous() and (not data.is_inference() or torch.is_inference_mode_enabled()):
                self._rows.append(data if shaped and data.nbytes <= SLOT_BYTES else data.view(-1))
                continue
            if any(step == 0 and length > 1 for step, length in zip(data.stride(), data.shape, strict=True)):
                raise ValueError("shm cannot write into an expanded tensor: its elements share memory")
            with torch.inference_mode(False):
                copy = torch.empty(data.shape, dtype=data.dtype).copy_(data)
            self._rows.append(copy.view(-1))
            self._back.append((data, copy))

    def __enter__(self) -> list[Tensor]:
        return self._rows

    def __exit__(self, kind: Any, *error: object) -> None:
        for data, copy in self._back if kind is None else ():
            with torch.inference_mode(data.is_inference()):
                data.copy_(copy)


def cut(tensor: Tensor, low: int, high: int) -> Tensor:
    """Return the elements from `low` to `high` of a flat tensor."""
    # most tensors go through in one piece, and cutting that costs as much as copying it
    return tensor if high - low == tensor.numel() else tensor[low:high]
