"""What a rank says about its call in 32 bits, which peers compare with theirs: operation, dtype, reduction, root."""

from __future__ import annotations

import torch

OPS = (
    "nothing",
    "barrier",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "reduce",
    "gather",
    "scatter",
)
REDUCTIONS = ("", "sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")

# every rank runs the same torch, so the same list
DTYPES = tuple(sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str))
_CODE = {dtype: code for code, dtype in enumerate(DTYPES)}


def pack(op: str, dtype: torch.dtype | None = None, reduction: int = 0, root: int = 0) -> int:
    """A call in 32 bits.

    >>> unpack(pack("all_reduce", torch.float32, REDUCTIONS.index("sum")), 2048)
    'all_reduce(sum, float32, 2048 elements)'
    """
    return OPS.index(op) << 24 | (_CODE[dtype] if dtype else 255) << 16 | reduction << 8 | root


def name(call: int) -> str:
    """The operation of a packed call.

    >>> name(pack("broadcast", torch.int8, root=1))
    'broadcast'
    """
    return OPS[call >> 24 & 255]


def unpack(call: int, numel: int) -> str:
    """A packed call in words; a call with a root says it, counts of all_to_all are left to the caller."""
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
