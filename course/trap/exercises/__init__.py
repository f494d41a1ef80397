"""The exercises of the lesson on the eager trap."""

from __future__ import annotations

from course.trap.exercises.gates import gate, guardrail
from course.trap.exercises.measure import measure

__all__ = ["gate", "guardrail", "measure"]
