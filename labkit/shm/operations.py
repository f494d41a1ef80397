"""The calls that `shm` knows, packed into 32 bits for peers to compare, and the functions that reduce tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

Reducer = Callable[[Sequence[torch.Tensor], torch.Tensor], None]

OPS = (
    "nothing barrier all_reduce all_gather reduce_scatter broadcast all_to_all reduce gather scatter".split()
)
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_STEP: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
REDUCTIONS = ("", *_STEP)
SUM = REDUCTIONS.index("sum")

# every rank runs the same torch, so the same list
DTYPES = tuple(sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str))
_CODE = {dtype: code for code, dtype in enumerate(DTYPES)}


def pack(op: str, dtype: torch.dtype | None = None, reduction: int = 0, root: int = 0) -> int:
    """Pack a call into 32 bits, for ranks to compare.

    Args:
        op: One of OPS.
        dtype: The dtype of the tensors; None for a call without tensors.
        reduction: The index of the reduction in REDUCTIONS; 0 for none.
        root: The rank that sends or receives, for a call that has a root.

    >>> unpack(pack("all_reduce", torch.float32, REDUCTIONS.index("sum")), 2048)
    'all_reduce(sum, float32, 2048 elements)'
    """
    return OPS.index(op) << 24 | (_CODE[dtype] if dtype else 255) << 16 | reduction << 8 | root


def name(call: int) -> str:
    """Return the operation of a packed call, one of OPS.

    >>> name(pack("broadcast", torch.int8, root=1))
    'broadcast'
    """
    return OPS[call >> 24 & 255]


def unpack(call: int, numel: int) -> str:
    """Describe a packed call in words.

    Args:
        call: The packed call.
        numel: Number of elements of this rank's tensor; not shown for all_to_all.

    Returns:
        Such as `reduce(sum, root 0, float32, 8 elements)`.
    """
    op, dtype, reduction, root = name(call), call >> 16 & 255, call >> 8 & 255, call & 255
    parts = []
    if reduction:
        parts.append(REDUCTIONS[reduction])
    if op in _ROOTED:
        parts.append(f"root {root}")
    if dtype != 255:
        parts.append(str(DTYPES[dtype]).removeprefix("torch."))
        if op != "all_to_all":
            parts.append(f"{numel} element{'s' * (numel != 1)}")
    return f"{op}({', '.join(parts)})"


def reduction_of(opts: Any) -> int:
    """Return the reduction that a call's options ask for.

    Args:
        opts: c10d's options of the call; None means a sum.

    Returns:
        The index of the reduction in REDUCTIONS.

    Raises:
        ValueError: If shm has no such reduction (PREMUL_SUM).
    """
    if (
        opts is None or (op := opts.reduceOp) == dist.ReduceOp.SUM
    ):  # the usual one first: asking for the name costs twice as much
        return SUM
    name = op.op.name.lower()
    if name not in _STEP:
        raise ValueError(f"shm has no reduction {name.upper()}: it has {', '.join(n.upper() for n in _STEP)}")
    return REDUCTIONS.index(name)


@cache
def reducer(reduction: int, dtype: torch.dtype, size: int) -> Reducer:
    """Return a function that reduces the tensors of all ranks, in the order of the ranks.

    Every dtype works that torch adds, multiplies or compares on the CPU. Each step rounds to that dtype, as in gloo.
    On bool, sum and max are `or`, product and min are `and`.

    Args:
        reduction: The index in REDUCTIONS.
        dtype: The dtype of the tensors.
        size: Number of ranks.

    Returns:
        A function of the ranks' tensors (a list of `size`) and the output tensor.

    Raises:
        ValueError: If the dtype cannot be reduced so: the average of integers, min and max of complex numbers,
            float8, bit operations on floats.
    """
    name = REDUCTIONS[reduction]
    step = _STEP[name]
    average = name == "avg"
    if average and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"AVG of {dtype} would round: reduce with SUM and divide")
    try:
        probe = torch.zeros(1, dtype=dtype)
        step(probe, probe, out=probe)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"shm cannot reduce {dtype} with {name.upper()}: torch says {error}") from None

    def two(parts: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        step(parts[0], parts[1], out=out)

    def many(parts: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        if size == 1:
            out.copy_(parts[0])
        else:
            step(parts[0], parts[1], out=out)
            for part in parts[2:]:
                step(out, part, out=out)
        if average:
            out.div_(size)

    return two if size == 2 and not average else many
