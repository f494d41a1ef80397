"""The exercises of the lesson on guards and shapes."""

from __future__ import annotations

from course.guards.exercises.count import count
from course.guards.exercises.served import SERVED, served
from course.guards.exercises.twelve import twelve

__all__ = ["SERVED", "count", "served", "twelve"]
