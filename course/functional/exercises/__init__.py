"""The exercises of the lesson on in-place and functional collectives."""

from __future__ import annotations

from course.functional.exercises.jobs import jobs
from course.functional.exercises.traceable import traceable

__all__ = ["jobs", "traceable"]
