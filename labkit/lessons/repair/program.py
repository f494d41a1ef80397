"""The program of lesson 18, run from the cells of its notebook: a service, and the mends of its nine faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.lessons.shared import program

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


program.load("18_repair_it", globals())
