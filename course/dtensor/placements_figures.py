"""Placements drawn: what each redistribution and each product of placed matrices costs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from course.shared.options import chosen
from labkit.views import style
from labkit.views.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import table

__all__ = ["figure"]

WHICH = ("moves", "matmul")
COLOURS = {"-": "#FFFFFF", "refused": "#BBBBBB"}
WORDS = {"R": "Replicate", "S(0)": "Shard(0)", "S(1)": "Shard(1)", "P": "Partial"}
SHORT = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


def figure(report: Any, which: str = "moves") -> Figure:
    """Draw a saved report of the placements.

    Args:
        report: the report.
        which: 'moves' (every redistribution and what it costs) or 'matmul' (every product of two placed matrices).

    Raises:
        ValueError: there is no such figure.
    """
    chosen([which], WHICH, "figure")
    return _moves(report) if which == "moves" else _matmul(report)


def words(collectives: str) -> str:
    """Collectives as a figure says them.

    >>> words("2 all_gather_into_tensor"), words("-")
    ('2 all_gather', 'nothing')
    """
    for long, brief in SHORT.items():
        collectives = collectives.replace(long, brief)
    return {"-": "nothing"}.get(collectives, collectives)


@styled
def _moves(report: Any) -> Figure:
    moves = table(report, "redistribute", ["start", "end", "forward", "backward"])
    return _cells(
        report, moves.rename(columns={"start": "row", "end": "column"}),
        "from", "to", lambda r: (r["forward"], f"back: {words(r['backward'])}" if r["forward"] != "refused" else ""),
        "What a redistribution costs, forward and back",
    )  # fmt: skip


@styled
def _matmul(report: Any) -> Figure:
    found = table(report, "matmul", ["x", "w", "y", "forward", "backward"])
    free = int((found["forward"] == "-").sum())
    return _cells(
        report, found.rename(columns={"x": "row", "w": "column"}),
        "x", "w", lambda r: (r["forward"], f"x @ w is {r['y']}; back: {words(r['backward'])}"),
        f"x @ w: {free} of {len(found)} pairs of placements need no collective for the product itself",
    )  # fmt: skip


def _cells(report: Any, found: pd.DataFrame, rows: str, columns: str, said: Any, title: str) -> Figure:
    names = list(WORDS)
    sheet = Sheet()
    sheet.title(
        title,
        f"Rows: the placement of {rows}; columns: of {columns}. Bold: collectives that CommDebugMode counts.",
    )
    cells = []
    for row in found.to_dict("records"):
        main, below = said(row)
        place = names.index(row["row"]), names.index(row["column"])
        cells.append(Cell(*place, COLOURS.get(main, "#D6ECF8"), words(main), below, bold=main not in COLOURS))
        sheet.say(f"{row['row']}, {row['column']}: {words(main)}{', ' if below else ''}{below}")
    shown = [WORDS[name] for name in names]
    matrix(sheet, shown, shown, cells, height=0.52, size=style.NORMAL, label="cells")
    return sheet.finish(report.label)
