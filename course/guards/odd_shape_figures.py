"""One rank sees another shape: when each rank compiled, when it waited, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from course.shared.timelines import ENDS, NOTES, timelines
from labkit.views.style import Figure
from labkit.views.widget import InteractiveFigure

__all__ = ["Attempts", "lanes"]

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


class Attempts(InteractiveFigure):
    """The runs of the odd shape, one at a time; every stop of the slider was run.

    Args:
        runs, sleep_s, label: as for `lanes`.
    """

    def __init__(self, runs: Mapping[str, Any], sleep_s: float, label: str) -> None:
        self.runs, self.sleep_s, self.label = runs, sleep_s, label
        super().__init__(lanes(runs, sleep_s, label), _outcomes(runs))

    def _build(self, widgets: Any) -> Any:
        slider = widgets.SelectionSlider(options=list(self.runs), description="run", continuous_update=False)

        def draw(run: str) -> tuple[Figure, str]:
            chosen = {run: self.runs[run]}
            return lanes(chosen, self.sleep_s, self.label), _outcomes(chosen)

        return self.picture_with_controls(widgets, {"run": slider}, draw)


def _outcomes(runs: Mapping[str, Any]) -> str:
    return " | ".join(
        f"{name}: {'right' if all(one['ended'] == 'right' for one in by_rank.values()) else 'error'}"
        for name, by_rank in runs.items()
    )


def _title(runs: Mapping[str, Any]) -> str:
    failed = [
        name for name, by_rank in runs.items() if any(one["ended"] != "right" for one in by_rank.values())
    ]
    return f"The same program fails with: {'; '.join(failed)}" if failed else "Slow, and right, in each run"
