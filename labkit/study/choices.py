"""Options that a reader chooses from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["choices"]


def choices(who: str, given: Any, kinds: tuple[type, ...] = (str, int, float)) -> list[Any]:
    """Check options before anything runs.

    Args:
        who: Whose options they are, for the message.
        given: A list of at least two different values.
        kinds: What a value may be.

    Returns:
        The list.

    Raises:
        ValueError: It is something else.

    >>> choices("control 'size'", [64, 256])
    [64, 256]
    """
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) < 2:
        raise ValueError(f"{who} needs a list of at least two values, got {given!r}")
    for value in given:
        if not isinstance(value, kinds):
            what = "a text" if kinds == (str,) else "a text, a number or a bool"
            raise ValueError(f"{who}: a value is {what}, got {value!r}")
    labels = [str(value) for value in given]
    for value, label in zip(given, labels, strict=True):
        if list(given).count(value) > 1 or labels.count(label) > 1:
            raise ValueError(f"{who} has {value!r} twice")
    return list(given)
