"""The program of lesson 05, run from the cells of its notebook: the ladder of an all-reduce, and the remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("05_eager_trap", globals())
