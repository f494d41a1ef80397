"""What a collective is to its ranks: the words in which they compare it, and the arithmetic of its reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.shm.segment import SLOT_BYTES

Reducer = Callable[[Sequence[Tensor], Tensor], object]
SUM = dist.ReduceOp.SUM

_STEP: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


class Call:
    """A collective of one operation, dtype and size; ranks are in the same one if its `code` is the same.

    Args:
        text: What a person reads, such as `reduce(sum, root 0, float32, 8 elements)`.
        dtype: The dtype of the tensors.
        shape: The shape of what a rank puts into its slots.

    Attributes:
        pieces: The pieces in which it goes through (elements from, to, shape). What takes several must be flat, and
            nothing goes through as one empty piece.
    """

    __slots__ = ("code", "dtype", "pieces", "text")

    def __init__(self, text: str, dtype: torch.dtype = torch.uint8, shape: Sequence[int] = (0,)):
        self.text, self.dtype = text, dtype
        self.code = int.from_bytes(blake2b(text.encode(), digest_size=6).digest())
        numel, room = math.prod(shape), SLOT_BYTES // dtype.itemsize
        self.pieces: list[tuple[int, int, Sequence[int]]] = [(0, numel, shape)]
        if numel > room:
            starts = range(0, numel, room)
            self.pieces = [(low, min(low + room, numel), (min(room, numel - low),)) for low in starts]


@lru_cache(maxsize=4096)
def call(op: str, how: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Call:
    """Return the call of an operation, `how` its reduction or root; the same object again where it is the same.

    >>> call("all_reduce", "sum", torch.float32, (16, 128)).text
    'all_reduce(sum, float32, 2048 elements)'
    """
    numel = math.prod(shape)
    words = [how, str(dtype).removeprefix("torch."), f"{numel} element{'s' * (numel != 1)}"]
    return Call(f"{op}({', '.join(filter(None, words))})", dtype, shape)


def reduction(opts: Any) -> str:
    """Return the name of the reduction that a call's options ask for.

    Raises:
        ValueError: If shm has no such reduction (PREMUL_SUM).
    """
    # the usual one first: asking for the name costs twice as much
    if opts is None or opts.reduceOp == SUM:
        return "sum"
    name = opts.reduceOp.op.name.lower()
    if name not in _STEP:
        raise ValueError(f"shm has no reduction {name.upper()}: it has {', '.join(n.upper() for n in _STEP)}")
    return name


@lru_cache(maxsize=4096)
def reducer(name: str, dtype: torch.dtype, size: int) -> Reducer:
    """Return a function that reduces the tensors of all ranks, in the order of the ranks.

    Every dtype works that torch adds, multiplies or compares on the CPU. Each step rounds to that dtype, as in gloo.
    On bool, sum and max are `or`, product and min are `and`.

    Args:
        name: The reduction.
        dtype: The dtype of the tensors.
        size: Number of ranks.

    Returns:
        A function of the ranks' tensors (a list of `size`) and the output tensor.

    Raises:
        ValueError: If the dtype cannot be reduced so: the average of integers, min and max of complex numbers,
            float8, bit operations on floats.
    """
    step, average = _STEP[name], name == "avg"
    if average and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"AVG of {dtype} would round: reduce with SUM and divide")
    try:
        probe = torch.zeros(1, dtype=dtype)
        step(probe, probe, out=probe)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"shm cannot reduce {dtype} with {name.upper()}: torch says {error}") from None

    def two(parts: Sequence[Tensor], out: Tensor) -> None:
        step(parts[0], parts[1], out=out)

    def many(parts: Sequence[Tensor], out: Tensor) -> None:
        out.copy_(parts[0])
        for part in parts[1:]:
            step(out, part, out=out)
        if average:
            out.div_(size)

    return two if size == 2 and not average else many
