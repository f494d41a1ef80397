"""The program of lesson 16, run from the cells of its notebook: a block traced on one rank of a large world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("16_beyond_this_machine", globals())
