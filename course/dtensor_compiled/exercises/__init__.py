"""The exercises of the lesson on what both forms of tensor parallelism send and cost."""

from __future__ import annotations

from course.dtensor_compiled.exercises.jobs import jobs
from course.dtensor_compiled.exercises.traffic import bytes

__all__ = ["bytes", "jobs"]
