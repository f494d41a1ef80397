"""One engine: what a region, an executed break, a recompile and a collective is, from a trace or a running process."""

from __future__ import annotations

from typing import Any

from oddrank.record.compare import Change, Difference, Step, break_times, diff, first_difference
from oddrank.record.folder import read
from oddrank.record.tables import (
    Collective,
    Compile,
    Count,
    GraphBreak,
    Line,
    Mark,
    Range,
    Segment,
    Table,
    Tables,
    merge,
)

__all__ = [
    "Change",
    "Collective",
    "Compile",
    "Count",
    "Difference",
    "GraphBreak",
    "Line",
    "Mark",
    "Range",
    "Record",
    "Segment",
    "Step",
    "Table",
    "Tables",
    "break_times",
    "diff",
    "first_difference",
    "install",
    "merge",
    "read",
    "record",
]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first asked for."""
    if name in ("Record", "install", "record"):
        from oddrank.record import process

        return getattr(process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
