"""Stream and event programs: written down, simulated, checked for races, and the real graphs of the compiler."""

from __future__ import annotations

from labkit.lessons.shared.streams.graph import StreamGraph, StreamGraphs
from labkit.lessons.shared.streams.hazards import CAUSES, Race
from labkit.lessons.shared.streams.ops import StreamError
from labkit.lessons.shared.streams.program import Program
from labkit.lessons.shared.streams.simulator import simulate
from labkit.lessons.shared.streams.timeline import Timeline

__all__ = [
    "CAUSES",
    "Program",
    "Race",
    "StreamError",
    "StreamGraph",
    "StreamGraphs",
    "Timeline",
    "simulate",
]
