"""The exercises of the lesson on reading graphs."""

from __future__ import annotations

from course.reading.exercises.backends import differ
from course.reading.exercises.culprit import culprit
from course.reading.exercises.tangled import one

__all__ = ["culprit", "differ", "one"]
