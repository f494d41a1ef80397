"""The picture of the lesson: the order of calls in Inductor's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labkit.views.matrix import Cell, key, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table_of

__all__ = ["figure"]

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

    Raises ValueError for a report with none of these.
    """
    for table, draw in DRAWN.items():
        found = table_of(report, table)
        if found is not None:
            if found.empty:
                return empty_figure(Sheet(), "nothing was measured", report.label)
            return draw(report, found)
    raise ValueError(f"report {report.name!r} has no picture: it has {', '.join(report.tables)}")


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
    "order": _order,
}
