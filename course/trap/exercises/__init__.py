"""The exercises of the lesson on the eager trap."""

from __future__ import annotations

from course.trap.exercises.gate import gate
from course.trap.exercises.reports import reports
from course.trap.exercises.rungs import rungs

__all__ = ["gate", "reports", "rungs"]
