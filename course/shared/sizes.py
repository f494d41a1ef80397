"""Sizes of tensors in words."""

from __future__ import annotations

__all__ = ["size"]


def size(nbytes: float) -> str:
    """A size as people write it.

    >>> size(4), size(16384), size(64 << 20)
    ('4 B', '16 KB', '64 MB')
    """
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes:g} B"
