"""Torch's report of the graphs of a function, in a form that fits under a cell."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["short"]


def short(report: Any) -> str:
    """Cut the text of what `torch._dynamo.explain` returned before its guards, and the kernel's names of cells."""
    text = str(report).partition("Out Guards:")[0].rstrip()
    return re.sub(r"(?<=FrameSummary file )[^,]*", "of this cell", text)
