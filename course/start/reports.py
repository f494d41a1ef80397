"""Torch's report of the graphs of a function, in a form that fits under a cell."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from labkit.study.bench import Fold

__all__ = ["folded", "short"]


def short(report: Any) -> str:
    """Cut the text of what `torch._dynamo.explain` returned before its guards, and the kernel's names of cells."""
    text = str(report).partition("Out Guards:")[0].rstrip()
    return re.sub(r"(?<=FrameSummary file )[^,]*", "of this cell", text)


def folded(reports: Mapping[int, str], said: str) -> Fold:
    """The ranks' reports below each other, under what is said of a prediction, folded."""
    text = "\n\n".join([said, *(f"--- rank {rank}\n{report}" for rank, report in reports.items())])
    return Fold("torch's report of each rank, and your prediction", f"<pre>{html.escape(text)}</pre>")
