"""Torch's report of the graphs of a function, in a form that fits under a cell."""

from __future__ import annotations

import re

from torch._dynamo.backends.debugging import ExplainOutput

__all__ = ["short"]


def short(report: ExplainOutput) -> str:
    """The report up to the part on guards, with names of notebook cells in the place of the kernel's file names."""
    text = str(report).partition("Out Guards:")[0].rstrip()
    return re.sub(r"(?<=FrameSummary file )[^,]*", "of this cell", text)
