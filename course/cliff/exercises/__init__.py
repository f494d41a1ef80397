"""The exercises of the lesson on the graph-break cliff."""

from __future__ import annotations

from course.cliff.exercises.layer import layer
from course.cliff.exercises.loop import loop
from course.cliff.exercises.slow import LOG, slow

__all__ = ["LOG", "layer", "loop", "slow"]
