"""The program of lesson 04, run from the cells of its notebook: all-reduces, layers, a block and the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("04_graph_break_cliff", globals())
