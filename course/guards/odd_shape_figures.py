"""One rank sees another shape: how it ended, by when the shape differs and by what was switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from course.shared.timelines import ENDS, NOTES, timelines
from labkit.views.style import Figure
from labkit.views.widget import InteractiveFigure

__all__ = ["Attempts", "lanes"]

KIND = {"compile": "compile", "all-reduce": "collective"}  # of a span, as `timelines` draws it


def lanes(runs: Mapping[float | None, Any], sleep_s: float, label: str) -> Figure:
    """Draw when each rank compiled and when it was in the all-reduce, one pair of lanes for each timeout.

    Args:
        runs: what `odd_call` of lesson 09 returned on each rank, by timeout in seconds; None is torch's default.
        sleep_s: the arranged sleep of each later compile.
        label: the run label.

    Returns:
        The figure.
    """
    notes, ends = [], []
    for timeout, by_rank in runs.items():
        drill = f"timeout: {_limit(timeout)}"
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
    """The runs of the odd shape with a slider for the timeout; every stop of the slider was run."""

    def __init__(self, runs: Mapping[float | None, Any], sleep_s: float, label: str) -> None:
        self.runs, self.sleep_s, self.label = runs, sleep_s, label
        super().__init__(lanes(runs, sleep_s, label), _outcomes(runs))

    def _build(self, widgets: Any) -> Any:
        stops = [(_limit(timeout), timeout) for timeout in self.runs]
        slider = widgets.SelectionSlider(options=stops, description="timeout", continuous_update=False)

        def draw(timeout: float | None) -> tuple[Figure, str]:
            chosen = {timeout: self.runs[timeout]}
            return lanes(chosen, self.sleep_s, self.label), _outcomes(chosen)

        return self.picture_with_controls(widgets, {"timeout": slider}, draw)


def _title(runs: Mapping[float | None, Any]) -> str:
    ended = {one["ended"] == "right" for by_rank in runs.values() for one in by_rank.values()}
    if ended == {True}:
        return "Every timeout outlasts the compile: slow, and right"
    return (
        "A timeout shorter than the compile ends a correct program"
        if True in ended
        else "Every timeout is too short"
    )


def _limit(timeout: float | None) -> str:
    return "torch's default" if timeout is None else f"{timeout:g} s"


def _outcomes(runs: Mapping[float | None, Any]) -> str:
    return ", ".join(
        f"{_limit(timeout)} {'right' if all(one['ended'] == 'right' for one in by_rank.values()) else 'error'}"
        for timeout, by_rank in runs.items()
    )
