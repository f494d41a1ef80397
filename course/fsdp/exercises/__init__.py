"""The exercises of the lesson on sharded training."""

from __future__ import annotations

from course.fsdp.exercises.ahead import ahead
from course.fsdp.exercises.buckets import bucket
from course.fsdp.exercises.gather import gather
from course.fsdp.exercises.optimizer import optimizer

__all__ = ["ahead", "bucket", "gather", "optimizer"]
