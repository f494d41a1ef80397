"""The program of lesson 09, run from the cells of its notebook: what varies, and what the compiler does about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("09_guards_and_shapes", globals())
