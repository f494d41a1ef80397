"""The program of lesson 07, run from the cells of its notebook: a training step, and what of it is offloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("07_streams_in_compile", globals())
