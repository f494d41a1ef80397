"""The program of lesson 15, run from the cells of its notebook: the ten break-it tests, as a rank runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("15_break_it", globals())
