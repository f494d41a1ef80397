"""Profiler events as tidy records, and each forward's time in segments."""

from __future__ import annotations

from labkit.trace.events import Event, tidy
from labkit.trace.profiler import Profile, RawEvent, collectives_end
from labkit.trace.segments import Segment, partition

__all__ = [
    "Event",
    "Profile",
    "RawEvent",
    "Segment",
    "collectives_end",
    "partition",
    "tidy",
]
