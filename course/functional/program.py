"""The program of lesson 02, run from its cells: every collective in each form, and the decision table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("02_inplace_vs_functional", globals())
