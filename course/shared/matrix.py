"""A matrix of coloured cells with words: what came of each row under each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.style import Sheet, ink_on

__all__ = ["Cell", "key", "matrix"]

GAP, LINE = 0.03, 0.15  # inches: around a cell, and a line of a column's head
WHITE = "#FFFFFF"
EDGE = {"edgecolor": style.QUIET, "linewidth": 0.4}


@dataclass(frozen=True)
class Cell:
    """A cell of a matrix.

    Args:
        row, column: its place, from 0.
        colour: '#RRGGBB'.
        words: the first line.
        below: a smaller second line.
        bold: of the first line.
        gid: the id of its rectangle in an SVG.
    """

    row: int
    column: int
    colour: str
    words: str
    below: str = ""
    bold: bool = False
    gid: str | None = None


def matrix(
    sheet: Sheet,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Iterable[Cell],
    *,
    height: float = 0.3,
    size: float = style.SMALL,
    label: str = "",
    xlabel: str = "",
) -> Axes:
    """Draw a matrix of cells at the next free place of a sheet, and move on to below it.

    Args:
        sheet: where to draw.
        rows, columns: their names, which may have several lines.
        cells: at most one for each row and column; the others stay empty. Words that do not fit are cut.
        height: of a row, in inches.
        size: of the words in the cells, in points.
        label: the name of the axes.
        xlabel: what the columns are; with it they are named below the cells, otherwise above.

    Returns:
        The axes, one unit for each row and column.

    >>> sheet = Sheet()
    >>> ax = matrix(sheet, ["shape"], ["none", "plan"], [Cell(0, 1, "#009E73", "caught")])
    >>> [text.get_text() for text in ax.texts]
    ['caught']
    """
    names = style.SMALL + 0.5
    left = 0.35 + max(style.text_width(line, names) for row in rows for line in row.splitlines() or [""])
    wide = (sheet.width - left - 0.2) / len(columns)
    heads = LINE * max((len(column.splitlines()) for column in columns), default=0) + 0.1
    ax = sheet.axes(left, wide * len(columns), height * len(rows), top=sheet.top + (0.0 if xlabel else heads))
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.set_label(label)
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(rows))], rows)
    ax.set_xticks([i + 0.5 for i in range(len(columns))], columns)
    ax.tick_params(length=0, labelsize=names, labelcolor=style.INK)
    ax.set_xlabel(xlabel, fontsize=style.SMALL)
    if not xlabel:
        ax.xaxis.tick_top()
    for cell in cells:
        _draw(ax, cell, wide, height, size)
    sheet.top += heads + height * len(rows) + (0.3 if xlabel else 0.1)
    return ax


def _draw(ax: Axes, cell: Cell, wide: float, height: float, size: float) -> None:
    dx, dy = GAP / wide, GAP / height
    edge = EDGE if cell.colour == WHITE else {"linewidth": 0}
    corner = cell.column + dx, cell.row + dy
    ax.add_patch(Rectangle(corner, 1 - 2 * dx, 1 - 2 * dy, facecolor=cell.colour, gid=cell.gid, **edge))
    middle: dict[str, Any] = {"ha": "center", "va": "center", "color": ink_on(cell.colour)}
    weight = "bold" if cell.bold else "normal"
    at = cell.row + (0.36 if cell.below else 0.52)
    words = style.cut(cell.words, wide - 2 * GAP, size)
    ax.text(cell.column + 0.5, at, words, fontsize=size, fontweight=weight, **middle)
    if cell.below:
        below = style.cut(cell.below, wide - 2 * GAP, style.SMALL)
        ax.text(cell.column + 0.5, cell.row + 0.71, below, fontsize=style.SMALL, **middle)


def key(colour: str) -> Callable[[Axes, float, float], Any]:
    """The legend key of cells of one colour."""
    return lambda ax, x, y: ax.add_patch(Rectangle((x, y), 0.2, 0.13, facecolor=colour, **EDGE))
