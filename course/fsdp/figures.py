"""The pictures of the lesson: when weights are whole, and the order of calls in Inductor's code."""

from __future__ import annotations

from typing import Any

import pandas as pd

from course.shared.matrix import Cell, key, matrix
from labkit.views import style, tables
from labkit.views.style import Figure, Sheet, empty_figure, styled

__all__ = ["figure", "lifetimes"]

ROW = 0.34  # inches
CALLS = {
    "all_gather": ("#E69F00", "G", "all_gather"),
    "reduce_scatter": ("#D55E00", "S", "reduce_scatter"),
    "wait": ("#F0E442", "w", "wait"),
    "mm": ("#0072B2", "mm", "matrix product"),
}


@styled
def figure(report: Any) -> Figure:
    """Draw the order of calls in Inductor's code.

    Raises ValueError for a report without the table 'order'.
    """
    order = tables.table(report, "order", ["way", "pass", "calls", "products between"])
    if order.empty:
        return empty_figure(Sheet(), "nothing was measured", report.label)
    sheet = Sheet()
    by = order.groupby("way", sort=False)["products between"].sum()
    sheet.title(
        f"Products between start and wait: {', '.join(f'{w} {n}' for w, n in by.items())}",
        "The calls of Inductor's code, in order.",
    )
    sheet.legend(
        [
            (f"{mark}: {words}" if mark != words else words, key(colour))
            for colour, mark, words in CALLS.values()
        ]
    )
    most = max(len(text.split()) for text in order["calls"])
    labels, cells = [], []
    for i, row in enumerate(order.to_dict("records")):
        labels.append(f"{row['way']}, {row['pass']}")
        for j, call in enumerate(row["calls"].split()):
            colour, mark, _ = CALLS.get(call, ("#BBBBBB", "?", call))
            cells.append(Cell(i, j, colour, mark))
        sheet.say(f"{labels[-1]}: {row['calls']}")
    matrix(sheet, labels, [""] * most, cells, height=ROW)
    return sheet.finish(report.label)


GATHERED = {
    "gathering": ("#E69F00", "gathering"),
    "whole": ("#0072B2", "whole"),
    "reducing": ("#D55E00", "gradients being reduced"),
}


@styled
def lifetimes(table: pd.DataFrame, label: str) -> Figure:
    """Draw when each unit is gathered, whole and reduced: a lane a unit, a panel a route.

    The title tells how many blocks hold memory at once, at most: those that are whole, or on their way.

    Args:
        table: the spans, as `moments.spans` makes them.
        label: what the ranks are, such as 'gloo · cpu'.

    Raises:
        ValueError: a column is missing.
    """
    tables.need(table, ["route", "unit", "what", "start", "end"], "spans")
    sheet = Sheet()
    if table.empty:
        return empty_figure(sheet, "nothing was measured", label)
    routes = list(dict.fromkeys(table["route"]))
    most = {route: held_at_once(table[table["route"] == route]) for route in routes}
    said = ", ".join(f"{count} ({route})" for route, count in most.items())
    sheet.title(
        f"Blocks in memory at once, at most: {said}",
        "One step on one rank. A lane is a unit; a block is in memory from the launch of its gather until it is freed.",
    )
    sheet.legend([(name, key(colour)) for colour, name in GATHERED.values()])
    for route in routes:
        mine = table[table["route"] == route]
        units = sorted(mine["unit"].unique(), key=lambda unit: (unit != "root", unit))
        sheet.top += 0.35
        left = 0.3 + max(style.text_width(unit, style.NORMAL) for unit in units)
        ax = sheet.axes(left, sheet.width - left - 0.3, 0.3 * len(units))
        ax.set_title(route, loc="left", fontsize=style.NORMAL, fontweight="bold")
        for row in mine.itertuples():
            colour, _ = GATHERED[row.what]
            low = row.what == "reducing"
            ax.barh(
                units.index(row.unit) + (0.24 if low else 0),
                row.end - row.start,
                left=row.start,
                height=0.24 if low else 0.7 if row.what == "whole" else 0.46,
                color=colour,
            )
        ax.set(ylim=(len(units) - 0.4, -0.6), xlim=(0, table["end"].max() * 1.01), xlabel="time, ms")
        ax.set_yticks(range(len(units)), units)
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
        sheet.top += 0.55
        spoken = mine.groupby("what", sort=False).size()
        sheet.say(f"{route}: {', '.join(f'{what} {count} times' for what, count in spoken.items())}")
    return sheet.finish(label)


def held_at_once(table: pd.DataFrame) -> int:
    """The largest number of blocks, the root left out, that are whole or on their way at one time.

    >>> columns = ["unit", "what", "start", "end"]
    >>> rows = [("root", "whole", 0, 9), ("a", "gathering", 0, 1), ("a", "whole", 1, 4), ("b", "gathering", 3, 5)]
    >>> held_at_once(pd.DataFrame(rows, columns=columns))
    2
    """
    held = table[(table["unit"] != "root") & table["what"].isin(["gathering", "whole"])]
    return max(
        (held[(held["start"] <= now) & (held["end"] > now)]["unit"].nunique() for now in held["start"]),
        default=0,
    )
