"""The program of lesson 10, run from the cells of its notebook: one block by four routes, and changes of placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("10_dtensor_or_explicit", globals())
