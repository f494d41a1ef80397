"""One rank sees another shape: how it ended, by when the shape differs and by what was switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from course.shared.drill_figures import LOOKS
from course.shared.timelines import ENDS, NOTES, timelines
from labkit.views import style
from labkit.views.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table
from labkit.views.widget import InteractiveFigure

__all__ = ["Attempts", "figure", "lanes"]

ROW = 0.62  # inches
KIND = {"compile": "compile", "all-reduce": "collective"}  # of a span, as `timelines` draws it


@styled
def figure(report: Any) -> Figure:
    """Draw a saved report of the odd shape: a row for when one rank's shape differs.

    A column is what was switched on; a cell says how three calls in step ended, the graphs that each rank compiled, and
    whether one of them is dynamic. Raises ValueError for a missing table.
    """
    columns = ["differs", "help", "outcome", "graphs by rank", "dynamic by rank", "sleep_s", "timeout_s"]
    found = table(report, "outcomes", columns)
    sheet = Sheet()
    if found.empty:
        return empty_figure(sheet, "Nothing was run", report.label)
    rows, columns = list(pd.unique(found["differs"])), list(pd.unique(found["help"]))
    sheet.title(
        _finding(found),
        "Each cell: how it ended, and graphs compiled by rank. Rows: when the last rank's input is longer. Arranged: "
        f"{_arranged(found)}.",
    )
    cells = []
    for row in found.to_dict("records"):
        colour, words = LOOKS.get(str(row["outcome"]), ("#FFFFFF", str(row["outcome"])))
        words = "error" if row["outcome"] == "error" else words
        graphs = _graphs(row)
        place = rows.index(row["differs"]), columns.index(row["help"])
        cells.append(Cell(*place, colour, words, graphs, bold=True))
        sheet.say(f"{row['differs']}, {row['help']}: {row['outcome']}" + (f", {graphs}" if graphs else ""))
    heads = ["no help" if name == "none" else name.replace(", ", ",\n") for name in columns]
    names = [name.replace(", ", ",\n") for name in rows]
    matrix(sheet, names, heads, cells, height=ROW, size=style.NORMAL)
    return sheet.finish(report.label)


def _graphs(row: dict[str, Any]) -> str:
    if row["graphs by rank"] == "-":
        return ""
    dynamic = ", dynamic" if "yes" in str(row["dynamic by rank"]) else ""
    return f"graphs {row['graphs by rank']}{dynamic}"


def _arranged(found: pd.DataFrame) -> str:
    """The sleep and the timeout that stand behind these outcomes, in words."""
    waits = [f"after {seconds:g} s" for seconds in found["timeout_s"].dropna().unique()]
    waits += ["at torch's default where a row says so"] if found["timeout_s"].isna().any() else []
    slept = ", ".join(f"{seconds:g} s" for seconds in found["sleep_s"].unique())
    return f"a compile after the first sleeps {slept}; collectives time out {', '.join(waits)}"


def _finding(found: pd.DataFrame) -> str:
    alone = found[(found["help"] == "none") & (found["differs"] != "no rank")]
    plain, control = alone[alone["timeout_s"].notna()], alone[alone["timeout_s"].isna()]
    said = ", ".join(f"{row['differs']} {row['outcome']}" for row in plain.to_dict("records"))
    said += "".join(f" ({row['outcome']} at the default timeout)" for row in control.to_dict("records"))
    helped = found[(found["outcome"] == "right") & (found["help"] != "none")]
    bad = set(plain[plain["outcome"] != "right"]["differs"])
    mends = list(dict.fromkeys(helped[helped["differs"].isin(bad)]["help"]))
    rest = f"; mended by {', '.join(mends)}" if mends else "; nothing here mends that" if bad else ""
    return f"Another shape on one rank, without help: {said}{rest}"


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
    ended = {one["ended"] == "right" for by_rank in runs.values() for one in by_rank}
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
        f"{_limit(timeout)} {'right' if all(one['ended'] == 'right' for one in by_rank) else 'error'}"
        for timeout, by_rank in runs.items()
    )
