"""A failed guard of Dynamo in plain words."""

from __future__ import annotations

import re

__all__ = ["words"]

_SIZE = re.compile(
    r"tensor '(?P<what>.+)' size mismatch at index (?P<axis>\d+)\. expected (?P<old>\d+), actual (?P<new>\d+)"
)
_LOCAL = re.compile(r"\b[LG]\['(\w+)'\]")


def words(reason: str) -> str:
    """Say in plain words which guard failed.

    Args:
        reason: The guard in one line, as Dynamo reports it.

    >>> words("tensor 'x' size mismatch at index 1. expected 16, actual 24")
    'dimension 1 of `x` changes (16 -> 24)'
    """
    reason = _LOCAL.sub(r"\1", reason).strip()
    if size := _SIZE.search(reason):
        return f"dimension {size['axis']} of `{size['what']}` changes ({size['old']} -> {size['new']})"
    return reason
