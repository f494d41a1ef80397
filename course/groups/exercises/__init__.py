"""The exercises of the lesson on process groups."""

from __future__ import annotations

from course.groups.exercises.ring import ring
from course.groups.exercises.start import MATERIAL, start

__all__ = ["MATERIAL", "ring", "start"]
