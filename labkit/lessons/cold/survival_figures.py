"""Kinds of artifacts against changes: what each pair came to, in words and colours."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.colour import ink_on
from labkit.views.frames import need, table_of
from labkit.views.rows import empty
from labkit.views.style import Figure, Sheet, styled

__all__ = ["figure"]

ROW = 0.42  # inches
# an outcome: its colour (Okabe-Ito), and what it means; the word itself stands in the cell
LOOKS = {
    "hit": ("#009E73", "right, nothing compiled"),
    "miss": ("#F0E442", "right, compiled again"),
    "refused": ("#56B4E9", "an error"),
    "wrong": ("#000000", "ran, with other numbers"),
}


@styled
def figure(report: Any, which: str = "matrix", title: str | None = None) -> Figure:
    """Draw the report of `labkit.lessons.cold.survival`: 'matrix', kinds of artifacts by changes.

    Raises ValueError for another figure or a missing table.
    """
    if which != "matrix":
        raise ValueError(f"no figure {which!r} of this report: there is matrix")
    found = table_of(report, "outcomes")
    if found is None:
        raise ValueError(f"this report has no table 'outcomes': it has {', '.join(report.tables)}")
    cells = need(found, ["kind", "change", "outcome"], "outcomes")
    sheet = Sheet()
    if cells.empty:
        return empty(sheet, title, "No artifact was used", report.label)
    kinds, changes = list(dict.fromkeys(cells["kind"])), list(dict.fromkeys(cells["change"]))
    wrong = cells[cells["outcome"] == "wrong"]
    silent = "; ".join(
        f"{kind}: {', '.join(rows['change'])}" for kind, rows in wrong.groupby("kind", sort=False)
    )
    sheet.title(
        title
        or (
            f"Wrong in silence after a change of: {silent}" if len(wrong) else "Nothing went wrong in silence"
        ),
        "Each cell a fresh process that uses the artifact after the change.",
    )
    there = [name for name in LOOKS if name in set(cells["outcome"])]
    sheet.legend([(f"{name}: {LOOKS[name][1]}", _swatch(LOOKS[name][0])) for name in there])
    left = 0.35 + max(style.text_width(kind, style.NORMAL) for kind in kinds)
    ax = sheet.axes(left, sheet.width - left - 0.25, ROW * len(kinds))
    ax.set(xlim=(0, len(changes)), ylim=(len(kinds), 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(kinds))], kinds)
    ax.set_xticks([i + 0.5 for i in range(len(changes))], changes)
    ax.tick_params(length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    ax.set_xlabel("what changed since it was made", fontsize=style.SMALL)
    for cell in cells.to_dict("records"):
        colour = LOOKS.get(str(cell["outcome"]), ("#FFFFFF", ""))[0]
        x, y = changes.index(cell["change"]), kinds.index(cell["kind"])
        ax.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, facecolor=colour, linewidth=0))
        ax.text(x + 0.5, y + 0.5, cell["outcome"], ha="center", va="center", color=ink_on(colour))
    sheet.top += 0.5
    for kind, rows in cells.groupby("kind", sort=False):
        sheet.say(f"{kind}: " + ", ".join(f"{c['change']} {c['outcome']}" for c in rows.to_dict("records")))
    return sheet.finish(report.label)


def _swatch(colour: str) -> Any:
    look = {"facecolor": colour, "edgecolor": style.QUIET, "linewidth": 0.4}
    return lambda ax, x, y: ax.add_patch(Rectangle((x, y), 0.2, 0.13, **look))
