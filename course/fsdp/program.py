"""The program of lesson 14, run from the cells of its notebook: sharded models, a small FSDP, passes on a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("14_fsdp_and_passes", globals())
