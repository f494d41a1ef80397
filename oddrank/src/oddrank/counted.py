"""A number with its noun."""

from __future__ import annotations

import re
from typing import SupportsInt

__all__ = ["counted"]

_VERBS = {"are": "is", "were": "was", "have": "has", "differ": "differs"}


def counted(number: SupportsInt, nouns: str) -> str:
    """Return a whole number with a noun, which is singular after 1, as its verbs are.

    Args:
        number: The number.
        nouns: The noun in plural, and what follows it.

    >>> counted(1, "parameters that were equal differ"), counted(0, "lines differ")
    ('1 parameter that was equal differs', '0 lines differ')
    """
    if int(number) == 1:
        nouns = re.sub(r"s\b", "", nouns, count=1)
        nouns = re.sub(rf"\b({'|'.join(_VERBS)})\b", lambda verb: _VERBS[verb[1]], nouns)
    return f"{int(number)} {nouns}"
