"""Stream and event programs: written down, simulated, checked for races, and the real graphs of the compiler."""

from __future__ import annotations

from labkit.streams.captured import capture, replay
from labkit.streams.cuda import observe
from labkit.streams.graph import StreamGraph, StreamGraphs
from labkit.streams.hazards import CAUSES, Race
from labkit.streams.ops import StreamError
from labkit.streams.program import Program
from labkit.streams.simulator import Deadlock, simulate
from labkit.streams.timeline import Timeline

__all__ = [
    "CAUSES",
    "Deadlock",
    "Program",
    "Race",
    "StreamError",
    "StreamGraph",
    "StreamGraphs",
    "Timeline",
    "capture",
    "observe",
    "replay",
    "simulate",
]
