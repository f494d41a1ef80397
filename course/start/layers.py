"""The layer with one line more, as a function whose source the compiler's record shows; and where its graphs end."""

from __future__ import annotations

import textwrap
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from oddrank.source import annotate

from labkit.per_rank import PerRank
from labkit.ranks import cells

__all__ = ["ENDS", "function", "text", "where"]

PLACES = "before the all_reduce", "after it"
LAYER = """\
def layer(x, w):
    y = x @ w
{0}    dist.all_reduce(y)
{1}    return torch.relu(y)
"""
ENDS = "on no rank", "on rank 0 only", "on rank 1 only", "on both, alike", "on both, not alike"


def text(line: str, place: str) -> str:
    """The source of the layer with a line more, or several.

    Args:
        line: What is added; '' for nothing.
        place: One of PLACES.

    Returns:
        The source; known to this process by the name that `function` gives it.

    Raises:
        ValueError: The place is unknown.
        SyntaxError: The line is not Python.
    """
    if place not in PLACES:
        raise ValueError(f"a place is one of {', '.join(map(repr, PLACES))}, got {place!r}")
    added = [""] * len(PLACES)
    if line.strip():
        added[PLACES.index(place)] = textwrap.indent(line.strip() + "\n", "    ")
    source = LAYER.format(*added)
    function(source)  # a typo is found before any rank runs
    return source


def function(source: str) -> Callable[..., Any]:
    """The function of a source that `text` made, in this process, which then can quote its lines.

    >>> function(text("y = y + 1", "after it")).__name__
    'layer'
    """
    file = f"layer_{zlib.crc32(source.encode()):08x}.py"
    code = compile(source, file, "exec")
    cells.learn({file: ("layer", source)})
    space: dict[str, Any] = {"torch": torch, "dist": dist}
    exec(code, space)
    return space["layer"]


def where(records: PerRank) -> str:
    """On which of two ranks a graph ends early: one of ENDS."""
    ended = [rank for rank, record in records.items() if record.counts[0].breaks]
    if len(ended) < 2:
        return ENDS[0] if not ended else ENDS[1 + ended[0]]
    rows = [row for section in annotate(records).listing.sections for row in section.rows]
    return ENDS[4] if any(row.differs for row in rows) else ENDS[3]
