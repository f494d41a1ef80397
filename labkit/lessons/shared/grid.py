"""Bytes of a ring, and the pause before a look at the sockets."""

from __future__ import annotations

from labkit.lessons.shared import costs

__all__ = ["SETTLE_S", "ring_bytes"]

SETTLE_S = 0.02  # a peer's last acknowledgement may follow the end of a collective


def ring_bytes(operation: str, size: int, message: int) -> float:
    """The least bytes that a rank sends in a ring of `size` ranks, with `message` bytes on each before the call.

    >>> ring_bytes("all_reduce", 4, 1024)
    1536.0
    """
    if operation == "all_to_all":
        return (size - 1) / size * message
    # in a broadcast ranks send differently much
    return costs.terms(operation, size, message)[1] if operation in costs.OPERATIONS else float("nan")
