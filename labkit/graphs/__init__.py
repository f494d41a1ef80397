"""Records of what Dynamo and Inductor did: graphs, breaks, recompiles, how often each ran, and every stage of them."""

from __future__ import annotations

from labkit.graphs.break_registry import Break, kind_of_break
from labkit.graphs.compile_log import install
from labkit.graphs.frame import STAGES, Frame, Frames, together
from labkit.graphs.inspection import inspect
from labkit.graphs.rank_difference import Difference, Step
from labkit.graphs.record import Record, merge
from labkit.graphs.recorder import record
from labkit.graphs.stage_diff import Diff, diff
from labkit.places import place

__all__ = [
    "STAGES",
    "Break",
    "Diff",
    "Difference",
    "Frame",
    "Frames",
    "Record",
    "Step",
    "diff",
    "inspect",
    "install",
    "kind_of_break",
    "merge",
    "place",
    "record",
    "together",
]
