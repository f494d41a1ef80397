"""The break-it tests as one picture: what came of each with its defence, and beside it without."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, ink_on, styled
from labkit.views.tables import table, table_of

__all__ = ["figure"]

LEFT, ROW, CHIP = 1.25, 0.36, 0.62  # inches
LOOKS = {"green": "#009E73", "red": "#D55E00"}
MEANS = (
    "Each test breaks something on purpose. Green: what was expected came about, and for that reason; what ended by a "
    "limit of time is red."
)


@styled
def figure(report: Any) -> Figure:
    """Draw the report of lesson 15: a row a test, its result, seconds, and what was observed.

    Its table `tests` has the tests with their defences. `undefended`, where there is one, has them without, as a
    second column. Raises ValueError for a report without the table `tests`.
    """
    columns = ["test", "result", "seconds", "observed"]
    runs = [table(report, "tests", columns)]
    if table_of(report, "undefended") is not None:
        runs.append(table(report, "undefended", columns))
    sheet = Sheet()
    if runs[0].empty:
        return empty_figure(sheet, "No test was run", report.label)
    names = list(runs[0]["test"])
    heads = ["with the defence", "defence off"] if len(runs) > 1 else [""]
    sheet.title(_finding(runs), MEANS)
    wide = (sheet.width - LEFT - 0.15) / len(runs)
    ax = sheet.axes(LEFT, wide * len(runs), ROW * len(names), top=sheet.top + 0.26)
    ax.set(xlim=(0, wide * len(runs)), ylim=(len(names), 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(names))], names)
    ax.set_xticks([wide * (i + 0.5) for i in range(len(runs))], heads)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=style.SMALL + 0.5, labelcolor=style.INK)
    for column, found in enumerate(runs):
        for row in found[found["test"].isin(names)].to_dict("records"):
            _cell(ax, column * wide, names.index(row["test"]), row, wide)
    sheet.top += 0.26 + ROW * len(names) + 0.1
    for head, found in zip(heads, runs, strict=True):
        said = (f"{row['test']} {row['result']} ({row['observed']})" for row in found.to_dict("records"))
        sheet.say(f"{head}: {'; '.join(said)}".removeprefix(": "))
    return sheet.finish(report.label)


def _cell(ax: Axes, left: float, line: int, row: dict[str, Any], wide: float) -> None:
    colour = LOOKS.get(str(row["result"]), "#FFFFFF")
    ax.add_patch(Rectangle((left + 0.04, line + 0.08), CHIP, 0.84, facecolor=colour, linewidth=0))
    middle = {"va": "center", "fontsize": style.SMALL}
    words = f"{row['result']}\n{row['seconds']:.1f} s"
    look = {"ha": "center", "color": ink_on(colour), "linespacing": 1.0}
    ax.text(left + 0.04 + CHIP / 2, line + 0.5, words, **look, **middle)
    room = wide - CHIP - 0.2
    text = "\n".join(_folded(str(row["observed"]), room))
    ax.text(left + CHIP + 0.12, line + 0.5, text, ha="left", linespacing=1.05, **middle)


def _folded(text: str, room: float) -> list[str]:
    """At most two lines that fit into `room` inches."""
    if style.cut(text, room, style.SMALL) == text:
        return [text]
    words, first = text.split(" "), 1
    while first < len(words) and style.text_width(" ".join(words[: first + 1]), style.SMALL) <= room:
        first += 1
    return [" ".join(words[:first]), style.cut(" ".join(words[first:]), room, style.SMALL)]


def _finding(runs: list[pd.DataFrame]) -> str:
    counts = [(int((found["result"] == "green").sum()), len(found)) for found in runs]
    here = "{} of {} tests are green with the defence".format(*counts[0])
    return here if len(runs) == 1 else here + ", and {} of {} without it".format(*counts[1])
