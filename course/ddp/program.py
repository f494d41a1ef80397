"""The program of lesson 13, run from the cells of its notebook: the model, DDP by each road, and what goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("13_ddp_and_compiled_autograd", globals())
