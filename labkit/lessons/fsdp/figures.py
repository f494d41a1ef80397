"""The pictures of the lesson: learning curves, and the order of calls in Inductor's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labkit.views import style
from labkit.views.matrix import Cell, key, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table_of

__all__ = ["figure"]

ROW = 0.34  # inches
LINES = ("#000000", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00")
MARKS = ("-", "--", ":", "-", "-.", "--")
CALLS = {
    "all_gather": ("#E69F00", "G", "all_gather"),
    "reduce_scatter": ("#D55E00", "S", "reduce_scatter"),
    "wait": ("#F0E442", "w", "wait"),
    "mm": ("#0072B2", "mm", "matrix product"),
}


@styled
def figure(report: Any) -> Figure:
    """Draw a report of this topic: curves (loss over steps), or the order of calls in Inductor's code.

    Raises ValueError for a report with none of these.
    """
    for table, draw in DRAWN.items():
        found = table_of(report, table)
        if found is not None:
            if found.empty:
                return empty_figure(Sheet(), "nothing was measured", report.label)
            return draw(report, found)
    raise ValueError(f"report {report.name!r} has no picture: it has {', '.join(report.tables)}")


def _curves(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["route", "step", "loss"], "curves")
    sheet = Sheet()
    names = list(dict.fromkeys(table["route"]))
    ends = table.groupby("route", sort=False)["loss"].last()
    sheet.title(_apart(table, names), "Loss of each step on its batch of digits.")
    sheet.legend([(name, _line(i)) for i, name in enumerate(names)])
    ax = sheet.axes(0.75, sheet.width - 1.2, 3.0)
    sheet.top += 0.5
    for i, name in enumerate(names):
        mine = table[table["route"] == name]
        look = {"color": LINES[i % 6], "linestyle": MARKS[i % 6], "linewidth": 2.6 - 0.4 * (i % 4)}
        ax.plot(mine["step"], mine["loss"], **look)
        sheet.say(f"{name}: {ends[name]:.3f} after {int(mine['step'].max())} steps")
    ax.set(xlabel="step", ylabel="loss, nats", ylim=(0, None))
    ax.grid(color=style.FAINT, linewidth=0.7)
    return sheet.finish(report.label)


def _apart(table: pd.DataFrame, names: list[str]) -> str:
    wide = table.pivot(index="step", columns="route", values="loss")
    off = [name for name in names[1:] if (wide[name] - wide[names[0]]).abs().max() > 1e-3]
    if not off:
        return f"All {len(names)} learn the same"
    return f"{', '.join(off)} learns something else than {names[0]}, and {len(names) - 1 - len(off)} the same"


def _line(i: int) -> Callable[..., Any]:
    look = {"color": LINES[i % 6], "linestyle": MARKS[i % 6], "linewidth": 2}
    return lambda ax, x, y: ax.plot([x, x + 0.22], [y + 0.06, y + 0.06], **look)


def _order(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["way", "pass", "calls", "products between"], "order")
    sheet = Sheet()
    by = table.groupby("way", sort=False)["products between"].sum()
    sheet.title(
        f"Products between a collective and its wait: {', '.join(f'{w} {n}' for w, n in by.items())}",
        "The calls of Inductor's code, in order.",
    )
    sheet.legend(
        [
            (f"{mark}: {words}" if mark != words else words, key(colour))
            for colour, mark, words in CALLS.values()
        ]
    )
    most = max(len(text.split()) for text in table["calls"])
    labels, cells = [], []
    for i, row in enumerate(table.to_dict("records")):
        labels.append(f"{row['way']}, {row['pass']}")
        for j, call in enumerate(row["calls"].split()):
            colour, mark, _ = CALLS.get(call, ("#BBBBBB", "?", call))
            cells.append(Cell(i, j, colour, mark))
        sheet.say(f"{labels[-1]}: {row['calls']}")
    matrix(sheet, labels, [""] * most, cells, height=ROW)
    return sheet.finish(report.label)


DRAWN: dict[str, Callable[[Any, pd.DataFrame], Figure]] = {
    "curves": _curves,
    "order": _order,
}
