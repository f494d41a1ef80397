"""The exercises of the lesson on the graph-break cliff."""

from __future__ import annotations

from course.cliff.exercises.census import census
from course.cliff.exercises.layer import layer
from course.cliff.exercises.loop import loop

__all__ = ["census", "layer", "loop"]
