"""The exercises of the lesson on one compile for all ranks."""

from __future__ import annotations

from course.since.exercises.coordinate import coordinate
from course.since.exercises.stays import stays

__all__ = ["coordinate", "stays"]
