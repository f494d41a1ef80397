"""The overlap experiment as pictures: what ran beside what, how long each way takes, what each definition says."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.lessons.shared.keys import mark
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table_of

__all__ = ["figure"]

LEFT, ROW = 2.3, 0.3
ALONE = ("communication alone", "computation alone")
MARKS = {"covered": ("o", "#0072B2"), "folded": ("s", "#D55E00"), "saved": ("^", "#009E73")}
WORDS = {
    "covered": "covered: the share of the communication beside which there was computation",
    "folded": "folded: sum of both minus their total, over the smaller",
    "saved": "saved: time saved against the sequence, over the smaller; the line is 10 to 90 % of the rounds",
}


@styled
def figure(report: Any, which: str = "ways") -> Figure:
    """Draw the report of `labkit.lessons.streams.experiment`: 'ways' (times of every way) or 'definitions'.

    Raises ValueError for a picture that does not exist or a report without its table.
    """
    if which not in ("ways", "definitions"):
        raise ValueError(f"no picture {which!r}: there is 'ways' and 'definitions'")
    label = str(getattr(report, "label", ""))
    table = table_of(report, "summary" if which == "ways" else "overlap")
    if table is None:
        raise ValueError(f"this report has no table for the picture {which!r}")
    sheet = Sheet()
    if table.empty:
        return empty_figure(sheet, "nothing was measured", label)
    return (_ways if which == "ways" else _definitions)(sheet, table, label)


def _ways(sheet: Sheet, table: pd.DataFrame, label: str) -> Figure:
    need(table, ["case", "way", "ms", "p10", "p90"], "summary")
    sheet.title("How long each way takes: rank 0, median and 10 to 90 % of the rounds")
    cases = list(dict.fromkeys(table["case"]))
    for case in cases:
        mine = table[table["case"] == case].reset_index(drop=True)
        sheet.text(case, fontweight="bold")
        ax = sheet.axes(LEFT, sheet.width - LEFT - 1.0, ROW * len(mine))
        sheet.top += 0.45
        for i, row in enumerate(mine.itertuples()):
            colour = style.QUIET if row.way in ALONE else style.KINDS["compute"][0]
            ax.plot([row.p10, row.p90], [i, i], color=colour, linewidth=2.5, solid_capstyle="butt")
            ax.plot([row.ms], [i], "o", color=colour, markersize=6)
            ax.annotate(
                f"{row.ms:.3g} ms", (1, i), xycoords=ax.get_yaxis_transform(), xytext=(8, 0),
                textcoords="offset points", va="center", fontsize=style.SMALL, annotation_clip=False,
            )  # fmt: skip
        before = mine[mine["way"] == "in sequence"]["ms"]
        if len(before):
            ax.axvline(float(before.iloc[0]), color=style.INK, linewidth=0.9, linestyle="--")
        ax.set(xlim=(0, mine["p90"].max() * 1.05), ylim=(len(mine) - 0.4, -0.6), xlabel="ms")
        ax.set_yticks(range(len(mine)), mine["way"])
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
        ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
        sheet.say(f"{case}: " + ", ".join(f"{row.way} {row.ms:.3g} ms" for row in mine.itertuples()))
    sheet.text("dashed: in sequence", fontsize=style.SMALL, color=style.QUIET)
    return sheet.finish(label)


def _definitions(sheet: Sheet, table: pd.DataFrame, label: str) -> Figure:
    need(table, ["case", "way", "definition", "value", "p10", "p90"], "overlap")
    mine = table[table["way"] == "async_op, wait late"]
    sheet.title("How much is hidden? It depends on the definition")
    cases = list(dict.fromkeys(mine["case"]))
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.4, 0.8 * len(cases) + 0.2)
    sheet.top += 0.45
    for row in mine.itertuples():
        marker, colour = MARKS[row.definition]
        y = cases.index(row.case) + 0.28 * (list(MARKS).index(row.definition) - 1)
        if row.p90 > row.p10:
            ax.plot([row.p10 * 100, row.p90 * 100], [y, y], color=colour, linewidth=1.5)
        ax.plot([row.value * 100], [y], marker, color=colour, markersize=8)
        ax.annotate(
            f"{row.value:.0%}", (row.value * 100, y), xytext=(8, 0), textcoords="offset points", va="center",
            fontsize=style.SMALL, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    values = mine[["value", "p10", "p90"]].stack().dropna() * 100
    low, high = min(0.0, values.min() - 8), max(100.0, values.max()) + 12
    ax.set(xlim=(low, high), ylim=(len(cases) - 0.5, -0.5), xlabel="hidden, %")
    ax.set_yticks(range(len(cases)), cases)
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.axvline(0, color=style.INK, linewidth=0.8)
    ax.axvline(100, color=style.INK, linewidth=0.8)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    for case in cases:
        each = mine[mine["case"] == case].itertuples()
        sheet.say(f"{case}: " + ", ".join(f"{row.definition} {row.value:.0%}" for row in each))
    sheet.legend([(WORDS[name], mark(*MARKS[name], 7)) for name in MARKS])
    return sheet.finish(label)
