"""Profiler events as tidy records, memory that a call allocates, and each forward's time in segments."""

from __future__ import annotations

from labkit.trace.events import Event, tidy
from labkit.trace.memory import Allocated, allocated, allocations, peak
from labkit.trace.profiler import Profile, RawEvent, collectives_end
from labkit.trace.segments import Segment, partition

__all__ = [
    "Allocated",
    "Event",
    "Profile",
    "RawEvent",
    "Segment",
    "allocated",
    "allocations",
    "collectives_end",
    "partition",
    "peak",
    "tidy",
]
