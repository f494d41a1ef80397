"""The exercises of the lesson on the graph-break cliff."""

from __future__ import annotations

from course.cliff.exercises.loop import loop
from course.cliff.exercises.slow import JOB, LOG, slow

__all__ = ["JOB", "LOG", "loop", "slow"]
