"""Stream and event programs: written down, simulated, checked for races, and the real graphs of the compiler."""

from __future__ import annotations

from course.shared.streams.graph import StreamGraph
from course.shared.streams.hazards import CAUSES
from course.shared.streams.ops import StreamError
from course.shared.streams.program import Program
from course.shared.streams.simulator import simulate
from course.shared.streams.timeline import Timeline

__all__ = [
    "CAUSES",
    "Program",
    "StreamError",
    "StreamGraph",
    "Timeline",
    "simulate",
]
