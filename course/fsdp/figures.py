"""The pictures of the lesson: when weights are whole, and the order of calls in Inductor's code."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from course.fsdp.passes import covered
from course.shared.matrix import Cell, key, matrix
from labkit.views import style, tables
from labkit.views.style import Figure, Sheet, empty_figure, styled

__all__ = ["lifetimes", "orders"]

ROW = 0.34  # inches
CALLS = {
    "all_gather": ("#E69F00", "G", "all_gather"),
    "reduce_scatter": ("#D55E00", "S", "reduce_scatter"),
    "wait": ("#F0E442", "w", "wait"),
    "mm": ("#0072B2", "M", "matmul"),
}


@styled
def orders(calls: Mapping[str, list[str]], label: str) -> Figure:
    """Draw the order of calls in Inductor's code, a row for each piece of code.

    Args:
        calls: by name, the calls in their order, as `passes.calls_of` gives them.
        label: what the ranks are, such as 'gloo · cpu'.
    """
    sheet = Sheet()
    if not calls:
        return empty_figure(sheet, "nothing was compiled", label)
    sheet.title(
        "Passes put matmuls between the start of a collective and its wait",
        "The calls of Inductor's code, in order. The numbers: collectives with a matmul before their wait, of all.",
    )
    sheet.legend(
        [
            (f"{mark}: {words}" if mark != words else words, key(colour))
            for colour, mark, words in CALLS.values()
        ]
    )
    counts = {name: "{} of {}".format(*covered(of)) for name, of in calls.items()}
    cells, labels = [], [f"{name}: {count}" for name, count in counts.items()]
    for i, (name, of) in enumerate(calls.items()):
        for j, call in enumerate(of):
            colour, mark, _ = CALLS.get(call, ("#BBBBBB", "?", call))
            cells.append(Cell(i, j, colour, mark))
        sheet.say(f"{name}, {counts[name]}: {' '.join(of)}")
    matrix(sheet, labels, [""] * max(map(len, calls.values())), cells, height=ROW)
    return sheet.finish(label)


GATHERED = {
    "gathering": ("#E69F00", "gathering"),
    "whole": ("#0072B2", "whole"),
    "reducing": ("#D55E00", "gradients being reduced"),
}


@styled
def lifetimes(table: pd.DataFrame, label: str, title: str) -> Figure:
    """Draw when each unit is gathered, whole and reduced: a lane a unit, a panel a route.

    Args:
        table: the spans, as `moments.spans` makes them.
        label: what the ranks are, such as 'gloo · cpu'.
        title: what the picture shows.

    Raises:
        ValueError: a column is missing.
    """
    tables.need(table, ["route", "unit", "what", "start", "end"], "spans")
    sheet = Sheet()
    if table.empty:
        return empty_figure(sheet, "nothing was measured", label)
    routes = list(dict.fromkeys(table["route"]))
    sheet.title(
        title, "One step on one rank. A lane is a unit; its gather lasts from the launch until the copy out."
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
