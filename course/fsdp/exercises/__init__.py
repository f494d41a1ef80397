"""The exercises of the lesson on sharded training."""

from __future__ import annotations

from course.fsdp.exercises.jobs import jobs
from course.fsdp.exercises.sink import sink
from course.fsdp.exercises.unit import unit

__all__ = ["jobs", "sink", "unit"]
