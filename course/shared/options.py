"""Checks of what an experiment was asked for, made before any rank runs."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["chosen"]


def chosen(names: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """Check that names exist.

    Args:
        names: the names that were asked for; none stands for all.
        known: the names that exist.
        what: what they name, for the message.

    Returns:
        The names without repetition, in the order given; all of `known` where none was given.

    Raises:
        ValueError: a name does not exist.

    >>> chosen(["b"], ["a", "b"], "policy"), chosen([], ["a", "b"], "policy")
    (['b'], ['a', 'b'])
    >>> chosen(["c"], ["a", "b"], "policy")
    Traceback (most recent call last):
    ValueError: unknown policy 'c': there is a, b
    """
    known = list(known)
    for name in (found := list(dict.fromkeys(names))):
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: there is {', '.join(known)}")
    return found or known
