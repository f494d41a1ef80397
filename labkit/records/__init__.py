"""Records of what Dynamo and Inductor did: graphs, breaks, recompiles, how often each ran, and every stage of them."""

from __future__ import annotations

from labkit.places import place
from labkit.records.compile_log import install
from labkit.records.frame import STAGES, Frame, Frames
from labkit.records.inspection import inspect
from labkit.records.rank_difference import Difference, Step
from labkit.records.reasons import Break, kind_of_break
from labkit.records.record import Record, merge
from labkit.records.recorder import record
from labkit.records.stage_diff import Diff, diff

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
]
