"""The table of collectives as a picture: a row each, a column a form, each cell saying what compiling made of it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.views.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

__all__ = ["figure"]

ROW = 0.27  # inches
# what compiling made of a program: a colour, and the words that stand in the cell
LOOKS: dict[str, tuple[str, str]] = {
    "yes": ("#0072B2", "one graph"),
    "no": ("#E69F00", "breaks"),
    "fails": ("#D55E00", "error while compiling"),
    "refused": ("#BBBBBB", "not on this backend"),
}
HEADS = {"async": "async_op=True", "async, no wait": "the same, no wait"}


@styled
def figure(report: Any, title: str | None = None) -> Figure:
    """Draw a saved report of all collectives: one graph, breaks, or an error, and other numbers marked.

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
