"""The break-it tests as one picture: the three runs of each, and how each ended."""

from __future__ import annotations

import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, ink_on, styled
from labkit.views.tables import table

__all__ = ["figure"]

LEFT, ROW, CHIP = 1.2, 0.36, 0.62  # inches
GOOD, BAD = "#009E73", "#D55E00"
MEANS = "Green: it ended as it has to. Each chip says how, and in how many seconds; beside it: what the last rank said."


@styled
def figure(report: Any) -> Figure:
    """Draw the report of lesson 15: a row for each test, a column for each run.

    Its table `tests` has test, run, good, how, said and seconds. Raises ValueError for a report without it.
    """
    found = table(report, "tests", ["test", "run", "good", "how", "said", "seconds"])
    sheet = Sheet()
    if found.empty:
        return empty_figure(sheet, "No test was run", report.label)
    names, runs = list(dict.fromkeys(found["test"])), list(dict.fromkeys(found["run"]))
    good = found.groupby("test")["good"].all()
    sheet.title(f"{int(good.sum())} of {len(good)} tests end as they have to in all of their runs", MEANS)
    wide = (sheet.width - LEFT - 0.15) / len(runs)
    ax = sheet.axes(LEFT, wide * len(runs), ROW * len(names), top=sheet.top + 0.26)
    ax.set(xlim=(0, wide * len(runs)), ylim=(len(names), 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(names))], names)
    ax.set_xticks([wide * (i + 0.5) for i in range(len(runs))], runs)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=style.SMALL + 0.5, labelcolor=style.INK)
    for row in found.to_dict("records"):
        _cell(ax, runs.index(row["run"]) * wide, names.index(row["test"]), row, wide)
    sheet.top += 0.26 + ROW * len(names) + 0.1
    for run in runs:
        rows = found[found["run"] == run].to_dict("records")
        sheet.say(
            f"{run}: " + "; ".join(f"{r['test']} {r['how']}{'' if r['good'] else ' (BAD)'}" for r in rows)
        )
    return sheet.finish(report.label)


def _cell(ax: Axes, left: float, line: int, row: dict[str, Any], wide: float) -> None:
    colour = GOOD if row["good"] else BAD
    ax.add_patch(Rectangle((left + 0.04, line + 0.08), CHIP, 0.84, facecolor=colour, linewidth=0))
    middle = {"va": "center", "fontsize": style.SMALL}
    words = f"{row['how']}\n{row['seconds']:.1f} s"
    look = {"ha": "center", "color": ink_on(colour), "linespacing": 1.0}
    ax.text(left + 0.04 + CHIP / 2, line + 0.5, words, **look, **middle)
    said = re.split(r"(?:^|; )rank \d+: ", str(row["said"]))[-1]
    text = "\n".join(_folded(said, wide - CHIP - 0.2))
    ax.text(left + CHIP + 0.12, line + 0.5, text, ha="left", linespacing=1.05, **middle)


def _folded(text: str, room: float) -> list[str]:
    """At most two lines that fit into `room` inches."""
    if style.cut(text, room, style.SMALL) == text:
        return [text]
    words, first = text.split(" "), 1
    while first < len(words) and style.text_width(" ".join(words[: first + 1]), style.SMALL) <= room:
        first += 1
    return [" ".join(words[:first]), style.cut(" ".join(words[first:]), room, style.SMALL)]
