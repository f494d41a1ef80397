"""One rank sees another shape: when each rank compiled, when it waited, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from course.shared.timelines import ENDS, NOTES, timelines
from labkit.study import pictures
from labkit.views.style import Figure

__all__ = ["Attempts", "lanes"]

KIND = {"compile": "compile", "all-reduce": "collective"}  # of a span, as `timelines` draws it


def lanes(runs: Mapping[str, Any], sleep_s: float, label: str) -> Figure:
    """Draw when each rank compiled and when it was in the all-reduce of each call, a pair of lanes for each run.

    Args:
        runs: what `odd_call` of lesson 09 returned on each rank, by what the run had, such as 'timeout 3 s'.
        sleep_s: the sleep that was added to each later compile of a graph that is new on its rank.
        label: the run label.

    Returns:
        The figure.
    """
    notes, ends = [], []
    for drill, by_rank in runs.items():
        for rank, one in by_rank.items():
            calls = 0
            for span in one["spans"]:
                calls += span["kind"] == "all-reduce"
                name = f"all-reduce {calls}" if span["kind"] == "all-reduce" else span["kind"]
                notes.append((drill, rank, KIND[span["kind"]], name, span["start"], span["end"]))
            over = max(span["end"] for span in one["spans"])
            ends.append((drill, rank, over, one["ended"].partition(":")[0]))
    on_purpose = (
        f"On purpose: the timeouts, and a sleep of {sleep_s:g} s in each later compile of a new graph."
    )
    on_purpose += " Time: since call 1 began."
    tables = pd.DataFrame(notes, columns=NOTES), pd.DataFrame(ends, columns=ENDS)
    return timelines(*tables, label=label, title=_title(runs), on_purpose=on_purpose)


class Attempts:
    """The runs of the odd shape, one at a time; every stop of the slider was run. A saved notebook has all of them.

    Args:
        runs, sleep_s, label: as for `lanes`.
    """

    def __init__(self, runs: Mapping[str, Any], sleep_s: float, label: str) -> None:
        self.runs, self.sleep_s, self.label = runs, sleep_s, label
        self.figure = lanes(runs, sleep_s, label)

    def widget(self) -> Any:
        """The slider above the picture of its run."""
        import ipywidgets

        slider = ipywidgets.SelectionSlider(
            options=list(self.runs), description="run", continuous_update=False
        )
        picture = ipywidgets.HTML()

        def draw(_: Any = None) -> None:
            run = slider.value
            picture.value = pictures.as_html(lanes({run: self.runs[run]}, self.sleep_s, self.label))

        slider.observe(draw, "value")
        draw()
        return pictures.live(ipywidgets, [slider, picture])

    def _ipython_display_(self) -> None:
        pictures.show(self.widget(), pictures.as_html(self.figure), repr(self))

    def __repr__(self) -> str:
        return repr(self.figure)


def _title(runs: Mapping[str, Any]) -> str:
    """What came of the wait of a rank that does not compile for one that does, and in which runs."""
    came: dict[str, list[str]] = {}
    for name, by_rank in runs.items():
        compiles = {sum(span["kind"] == "compile" for span in one["spans"]) for one in by_rank.values()}
        if any(one["ended"] != "right" for one in by_rank.values()):
            what = "an error"
        else:
            what = "slow, and right," if len(compiles) > 1 else "no such wait"
        came.setdefault(what, []).append(name)
    return "One rank waits while another compiles: " + "; ".join(
        f"{what} with {' and '.join(names)}" for what, names in came.items()
    )
