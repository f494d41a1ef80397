"""Numbers within bounds, as a command line takes them."""

from __future__ import annotations

import math

__all__ = ["read", "rule", "short"]


def rule(kind: type, least: float, most: float) -> str:
    """What a number has to be, in words.

    >>> rule(int, 1, 1_000_000), rule(float, 0.1, 9)
    ('a whole number from 1 to 1000000', 'a number from 0.1 to 9')
    """
    low, high = (str(int(bound)) if bound == int(bound) else str(bound) for bound in (least, most))
    return f"a {'whole ' * (kind is int)}number from {low} to {high}"


def read(text: str, kind: type, least: float, most: float) -> float:
    """Convert a text.

    Args:
        text: as typed.
        kind: int or float.
        least, most: the bounds, both allowed.

    Returns:
        The number.

    Raises:
        ValueError: it is none, or not within the bounds.

    >>> read("4", int, 1, 9)
    4
    """
    value = kind(text)
    if math.isnan(value) or not least <= value <= most:
        raise ValueError(text)
    return value


def short(text: str) -> str:
    """A text that was typed, as an error shows it."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
