"""The table of collectives as a picture: a row each, a column a form, each cell saying what compiling made of it."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from labkit.views import style
from labkit.views.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table

__all__ = ["figure", "gradients"]

LEFT, ROW = 2.2, 0.27  # inches
# what compiling made of a program: a colour, and the words that stand in the cell
LOOKS: dict[str, tuple[str, str]] = {
    "yes": ("#0072B2", "one graph"),
    "no": ("#E69F00", "breaks"),
    "fails": ("#D55E00", "error while compiling"),
    "refused": ("#BBBBBB", "not on this backend"),
}
MARKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))  # a rank's colour and shape
TRUTH = "finite differences"
HEADS = {"async": "async_op=True", "async, no wait": "the same, no wait"}


@styled
def figure(report: Any, title: str | None = None) -> Figure:
    """Draw the experiment's report: one graph, breaks, or an error, and other numbers marked.

    Raises ValueError when the report has no table 'summary' with its columns.
    """
    found = table(report, "summary", ["collective", "form", "one graph", "graphs", "numbers"])
    sheet = Sheet()
    if found.empty:
        return empty_figure(sheet, "No collective was run", report.label, title)
    names, forms = list(pd.unique(found["collective"])), list(pd.unique(found["form"]))
    sheet.title(title or _finding(found), "Each program compiled as a whole; cells say what became of it.")
    cells = [
        Cell(
            names.index(row["collective"]),
            forms.index(row["form"]),
            LOOKS.get(str(row["one graph"]), ("#FFFFFF", ""))[0],
            _words(row),
            bold=row["numbers"] not in ("same", "-"),
        )
        for row in found.to_dict("records")
    ]
    matrix(sheet, names, [HEADS.get(form, form) for form in forms], cells, height=ROW)
    for form, rows in found.groupby("form", sort=False):
        said = (f"{row['collective']} {_words(row)}" for row in rows.to_dict("records"))
        sheet.say(f"{HEADS.get(str(form), str(form))}: {', '.join(said)}")
    return sheet.finish(report.label)


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


@styled
def gradients(found: pd.DataFrame, label: str = "", title: str | None = None) -> Figure:
    """Draw gradients by the way in which they were found, one mark a rank, against those of finite differences.

    `found` has way, rank and gradient; a gradient that is no number is a way that refused, and says so. The way named
    'finite differences' is the truth: its values are the lines. Raises ValueError for a missing column or way.
    """
    found = need(found, ["way", "rank", "gradient"], "gradients")
    ways = list(pd.unique(found["way"]))
    if TRUTH not in ways:
        raise ValueError(f"there is no way {TRUTH!r} to hold the others against: there is {', '.join(ways)}")
    numbers = pd.to_numeric(found["gradient"], errors="coerce")
    right = {row.rank: row.gradient for row in found[found["way"] == TRUTH].itertuples()}
    off = found["way"].ne(TRUTH) & numbers.notna() & (numbers != found["rank"].map(right).astype(float))
    wrong, refused = list(pd.unique(found["way"][off])), list(pd.unique(found["way"][numbers.isna()]))
    sheet = Sheet()
    sheet.title(
        title or f"Wrong gradients: {'; '.join(wrong) or 'none'}", f"Refused: {'; '.join(refused) or 'none'}."
    )
    ax = sheet.axes(LEFT, sheet.width - LEFT - 1.6, ROW * 1.2 * len(ways))
    ax.set(ylim=(len(ways) - 0.5, -0.5))
    ax.set_yticks(range(len(ways)), ways)
    ax.tick_params(axis="y", length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    for value in set(right.values()):
        ax.axvline(float(value), color=style.QUIET, linewidth=1, linestyle="--", zorder=0)
    ranks = sorted(set(found["rank"]))
    for rank, row in zip(found["rank"], found.assign(number=numbers).to_dict("records"), strict=True):
        y = float(ways.index(row["way"]))
        if pd.isna(row["number"]):
            ax.annotate("refused", (0, y), (4, 0), textcoords="offset points", va="center", color=style.QUIET)
            continue
        colour, marker = MARKS[ranks.index(rank) % len(MARKS)]
        y += 0.3 * (ranks.index(rank) - (len(ranks) - 1) / 2)  # ranks that agree would hide each other
        ax.plot(row["number"], y, marker, color=colour, markersize=7)
    ax.set_xlim(0, max([1.0, *numbers.dropna()]) * 1.08)
    ax.set_xlabel("gradient of the whole loss by one element of a rank's x (no unit)", labelpad=2)
    sheet.top += 0.5
    keys = [(f"rank {rank}", _mark(*MARKS[i % len(MARKS)])) for i, rank in enumerate(ranks)]
    sheet.legend([*keys, ("finite differences", _dashes)], left=LEFT)
    for way in ways:
        mine = found[found["way"] == way]
        said = (f"rank {rank} {value}" for rank, value in zip(mine["rank"], mine["gradient"], strict=True))
        sheet.say(f"{way}: {', '.join(said)}")
    return sheet.finish(label)


def _mark(colour: str, marker: str) -> Any:
    return lambda ax, x, y: ax.plot(x + 0.1, y + 0.06, marker, color=colour, markersize=7)


def _dashes(ax: Axes, x: float, y: float) -> None:
    ax.plot([x, x + 0.2], [y + 0.06, y + 0.06], color=style.QUIET, linewidth=1, linestyle="--")
