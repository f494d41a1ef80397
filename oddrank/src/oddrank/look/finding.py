"""What a part of `oddrank look` has found in a program, in words."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Finding"]


class Finding(NamedTuple):
    """One thing that is not as it looks.

    Attributes:
        place: The line of the program, '' where it is not known.
        said: What happens.
        why: What torch does with it, or the names of both sides.
        fix: What to do.
    """

    place: str
    said: str
    why: str
    fix: str
