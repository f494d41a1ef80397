"""The program of lesson 12, run from the cells of its notebook: models, ways to be ready, and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("12_cold_and_warm", globals())
