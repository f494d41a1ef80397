"""What plots with one row a variant share: panels by evidence, names at the left, numbers at the right."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from labkit.views import style
from labkit.views.style import Figure, Sheet, variant_name

__all__ = ["LEFT", "beside", "empty", "heading", "names", "panels"]

LEFT = 1.95  # inches for the names of variants


def panels(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One panel for each kind of evidence, which must not share an axis; one without a name where none is given."""
    if "evidence" not in frame.columns:
        return [("", frame)]
    return [(str(name), frame[frame["evidence"] == name]) for name in pd.unique(frame["evidence"])]


def heading(sheet: Sheet, name: str) -> None:
    """A panel's name over it, when it has one."""
    if name:
        sheet.top += 0.05
        sheet.text(name, fontweight="bold", fontsize=10.5)
        sheet.top += 0.03


def empty(sheet: Sheet, title: str | None, said: str, label: str) -> Figure:
    """The figure of a table without rows: it says so instead of failing."""
    sheet.title(title or said)
    sheet.text(f"{said}: there is nothing to draw.", color=style.QUIET)
    sheet.top += 0.2
    return sheet.finish(label)


def names(ax: Axes, places: Sequence[float], variants: Sequence[str]) -> None:
    """The variants' names at the left of their rows, and a quiet grid."""
    ax.set_yticks(places, [style.cut(variant_name(str(v)), LEFT - 0.2) for v in variants])
    ax.tick_params(axis="y", length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)


def beside(ax: Axes, y: float, text: str, right: float = 10) -> None:
    """A note `right` points to the right of the axes, level with `y`."""
    where = {"xycoords": ax.get_yaxis_transform(), "xytext": (right, 0), "textcoords": "offset points"}
    size = style.SMALL + 0.3
    ax.annotate(text, (1, y), va="center", fontsize=size, annotation_clip=False, **where)
