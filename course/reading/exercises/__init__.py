"""The exercises of the lesson on reading graphs."""

from __future__ import annotations

from course.reading.exercises.backends import differ, waits
from course.reading.exercises.buckets import bucket
from course.reading.exercises.tangled import one

__all__ = ["bucket", "differ", "one", "waits"]
