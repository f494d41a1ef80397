"""What Dynamo and Inductor did: graphs, breaks, recompiles, compiles, and how often each of them ran."""

from __future__ import annotations

from labkit.graphs.differences import Difference, Step
from labkit.graphs.record import Record, merge
from labkit.graphs.recorder import record
from labkit.graphs.watch import install
from labkit.places import place

__all__ = ["Difference", "Record", "Step", "install", "merge", "place", "record"]
