"""The program of lesson 11, run from the cells of its notebook: a driver, a mesh, nine drills and a step to time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("11_mesh_or_world", globals())
