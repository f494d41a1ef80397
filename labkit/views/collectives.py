"""The table of collectives as a picture: a row each, a column a form, each cell saying what compiling made of it."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.colour import ink_on
from labkit.views.frames import need, table_of
from labkit.views.rows import empty
from labkit.views.style import Figure, Sheet, styled

__all__ = ["figure"]

LEFT, ROW, GAP = 2.2, 0.27, 0.04  # inches
# what compiling made of a program: a colour, and the words that stand in the cell
LOOKS: dict[str, tuple[str, str]] = {
    "yes": ("#0072B2", "one graph"),
    "no": ("#E69F00", "breaks"),
    "fails": ("#D55E00", "error while compiling"),
    "refused": ("#BBBBBB", "not on this backend"),
}
HEADS = {"async": "async_op=True", "async, no wait": "the same, no wait"}


@styled
def figure(report: Any, which: str = "table", title: str | None = None) -> Figure:
    """Draw the report of `labkit.experiments.collectives`: one graph, breaks, or an error, and other numbers marked.

    Raises ValueError for another figure, or when the report has no table 'summary' with its columns.
    """
    if which != "table":
        raise ValueError(f"no figure {which!r} of this report: there is table")
    found = table_of(report, "summary")
    if found is None:
        raise ValueError(f"this report has no table 'summary': it has {', '.join(report.tables)}")
    found = need(found, ["collective", "form", "one graph", "graphs", "numbers"], "summary")
    sheet = Sheet()
    if found.empty:
        return empty(sheet, title, "No collective was run", report.label)
    names, forms = list(pd.unique(found["collective"])), list(pd.unique(found["form"]))
    sheet.title(title or _finding(found), "Each program compiled as a whole; cells say what became of it.")
    wide = (sheet.width - LEFT - 0.3) / len(forms)
    ax = sheet.axes(LEFT, wide * len(forms), ROW * len(names), top=sheet.top + 0.26)
    ax.set(xlim=(0, len(forms)), ylim=(len(names), 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(names))], names)
    ax.set_xticks([i + 0.5 for i in range(len(forms))], [HEADS.get(form, form) for form in forms])
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    for row in found.to_dict("records"):
        _cell(ax, forms.index(row["form"]), names.index(row["collective"]), row, GAP / wide, GAP / ROW)
    sheet.top += 0.26 + ROW * len(names) + 0.1
    for form, rows in found.groupby("form", sort=False):
        said = (f"{row['collective']} {_words(row)}" for row in rows.to_dict("records"))
        sheet.say(f"{HEADS.get(str(form), str(form))}: {', '.join(said)}")
    return sheet.finish(report.label)


def _cell(ax: Axes, column: int, line: int, row: dict[str, Any], dx: float, dy: float) -> None:
    colour = LOOKS.get(str(row["one graph"]), ("#FFFFFF", ""))[0]
    ax.add_patch(Rectangle((column + dx, line + dy), 1 - 2 * dx, 1 - 2 * dy, facecolor=colour, linewidth=0))
    ax.text(
        *(column + 0.5, line + 0.52, _words(row)),
        ha="center",
        va="center",
        fontsize=style.SMALL,
        color=ink_on(colour),
        fontweight="bold" if row["numbers"] not in ("same", "-") else "normal",
    )


def _words(row: dict[str, Any]) -> str:
    state = str(row["one graph"])
    words = LOOKS[state][1] if state in LOOKS else f"ranks differ: {state}"
    if row["numbers"] not in ("same", "-"):
        return f"{words}, other numbers"
    return f"{words}, {row['graphs']} graphs" if state == "no" else words


def _finding(found: pd.DataFrame) -> str:
    said = []
    for form, rows in found.groupby("form", sort=False):
        kept = int((rows["one graph"] == "yes").sum())
        said.append(f"{HEADS.get(str(form), str(form))} {kept} of {len(rows)}")
    return f"Kept in one graph: {', '.join(said)}"
