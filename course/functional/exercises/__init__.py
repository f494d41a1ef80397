"""The exercises of the lesson on in-place and functional collectives."""

from __future__ import annotations

from course.functional.exercises.gather import gather
from course.functional.exercises.later import later

__all__ = ["gather", "later"]
