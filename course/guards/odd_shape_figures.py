"""One rank sees another shape: when each rank compiled, when it waited, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from course.shared.timelines import ENDS, NOTES, timelines
from labkit.views.style import Figure

__all__ = ["lanes"]

KIND = {"compile": "compile", "all-reduce": "collective"}  # of a span, as `timelines` draws it


def lanes(runs: Mapping[str, Any], sleep_s: float, label: str) -> Figure:
    """Draw when each rank compiled and when it was in the all-reduce, one pair of lanes for each run.

    Args:
        runs: what `odd_call` of lesson 09 returned on each rank, by what the run had, such as 'timeout 3 s'.
        sleep_s: the arranged sleep of each later compile.
        label: the run label.

    Returns:
        The figure.
    """
    notes, ends = [], []
    for drill, by_rank in runs.items():
        for rank, one in by_rank.items():
            notes += [
                (drill, rank, KIND[span["kind"]], span["kind"], span["start"], span["end"])
                for span in one["spans"]
            ]
            over = max(span["end"] for span in one["spans"])
            ends.append((drill, rank, over, one["ended"].partition(":")[0]))
    arranged = f"Arranged: the timeouts, and that a compile after the first sleeps {sleep_s:g} s."
    tables = pd.DataFrame(notes, columns=NOTES), pd.DataFrame(ends, columns=ENDS)
    return timelines(*tables, label=label, title=_title(runs), arranged=arranged)


def _title(runs: Mapping[str, Any]) -> str:
    failed = [
        name for name, by_rank in runs.items() if any(one["ended"] != "right" for one in by_rank.values())
    ]
    return f"The same program fails with: {'; '.join(failed)}" if failed else "Slow, and right, in each run"
