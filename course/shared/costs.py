"""A model of the cost of collectives: alpha seconds a step and beta seconds a byte.

Nothing here is measured or run: the results are a model's, and are to be labelled so. The terms:

- ring all_reduce: 2 (p - 1) steps, 2 (p - 1) / p of the message (Patarasuk and Yuan, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69, 2009);
- ring all_gather and reduce_scatter, its two halves: p - 1 steps, and (p - 1) / p of the whole (Thakur, Rabenseifner
  and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19,
  2005).
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["OPERATIONS", "ring_bytes", "terms"]

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")


def terms(operation: str, world_size: int, nbytes: float) -> tuple[float, float]:
    """The number of steps of a collective as a ring and the bytes that each rank sends in them.

    Args:
        operation: one of OPERATIONS.
        world_size: number of ranks.
        nbytes: bytes on each rank before the call.

    Returns:
        Steps and bytes.

    Raises:
        ValueError: the operation is unknown, the world is below 1, or the bytes are below 0.

    >>> terms("all_reduce", 4, 1024), terms("all_reduce", 1, 1024)
    ((6, 1536.0), (0, 0.0))
    """
    whole("world_size", world_size)
    number("bytes", nbytes, zero=True)
    if operation not in OPERATIONS:
        raise ValueError(f"no cost is known of {operation!r}: there is {', '.join(OPERATIONS)}")
    others = world_size - 1
    if operation == "all_gather":
        return others, float(others * nbytes)
    share = others / world_size * nbytes
    return (2 * others, 2 * share) if operation == "all_reduce" else (others, share)


def ring_bytes(operation: str, size: int, message: int) -> float:
    """The least bytes that a rank sends in a ring of `size` ranks, with `message` bytes on each before the call.

    >>> ring_bytes("all_reduce", 4, 1024)
    1536.0
    """
    if operation == "all_to_all":
        return (size - 1) / size * message
    # in a broadcast ranks send differently much
    return terms(operation, size, message)[1] if operation in OPERATIONS else float("nan")


def whole(name: str, value: Any, least: int = 1) -> int:
    """Check that a value is a whole number of at least `least`.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def number(name: str, value: Any, zero: bool = False) -> float:
    """Check that a value is a finite number above 0 (`zero`: or 0).

    Raises:
        ValueError: it is not.
    """
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(
            f"{name} must be a finite number {'of 0 or more' if zero else 'above 0'}, got {value!r}"
        )
    return float(value)
