"""The program of lesson 17, run from the cells of its notebook: programs, stores, and ranks in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("17_one_compile", globals())
