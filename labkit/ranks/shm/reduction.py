"""How the parts of the ranks become one tensor: in the order of the ranks, so that all ranks get the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks.shm.calls import REDUCTIONS

Reducer = Callable[[Sequence[torch.Tensor], torch.Tensor], None]

SUM = REDUCTIONS.index("sum")
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


def code(op: Any) -> int:
    """The number of a c10d ReduceOp in REDUCTIONS. Raises ValueError for one that shm lacks (PREMUL_SUM)."""
    if op == dist.ReduceOp.SUM:  # the usual one first: asking for the name costs twice as much
        return SUM
    name = op.op.name.lower()
    if name not in _STEP:
        raise ValueError(f"shm has no reduction {name.upper()}: it has {', '.join(n.upper() for n in _STEP)}")
    return REDUCTIONS.index(name)


@cache
def reducer(reduction: int, dtype: torch.dtype, size: int) -> Reducer:
    """The function that reduces `size` parts into its second argument.

    Any dtype goes that torch can add, multiply or compare on CPU, in that dtype's own precision after every step, as
    gloo does it. On bool, sum and max are `or`, product and min are `and`. The average of integers, min and max of
    complex numbers, float8 and bit operations on floats raise ValueError.
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
