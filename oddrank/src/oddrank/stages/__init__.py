"""What the compiler made of a function: its stages as text, their difference, guards and operations."""

from __future__ import annotations

from typing import Any

from oddrank.record.nodes import Node, nodes
from oddrank.stages.difference import Diff, Row, diff, digest
from oddrank.stages.frames import GRAPHS, STAGES, Frame, Frames
from oddrank.stages.guards import Guard

__all__ = [
    "GRAPHS",
    "STAGES",
    "Diff",
    "Frame",
    "Frames",
    "Guard",
    "Node",
    "Row",
    "diff",
    "digest",
    "inspect",
    "nodes",
]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first asked for: frames are read without it."""
    if name == "inspect":
        from oddrank.stages.inspection import inspect

        return inspect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
