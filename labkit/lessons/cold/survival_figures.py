"""Kinds of artifacts against changes: what each pair came to, in words and colours."""

from __future__ import annotations

from typing import Any

from labkit.views.matrix import Cell, key, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

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
def figure(report: Any) -> Figure:
    """Draw the report of `labkit.lessons.cold.survival`: kinds of artifacts by changes.

    Raises ValueError for a missing table.
    """
    cells = table(report, "outcomes", ["kind", "change", "outcome"])
    sheet = Sheet()
    if cells.empty:
        return empty_figure(sheet, "No artifact was used", report.label)
    kinds, changes = list(dict.fromkeys(cells["kind"])), list(dict.fromkeys(cells["change"]))
    wrong = cells[cells["outcome"] == "wrong"]
    silent = "; ".join(
        f"{kind}: {', '.join(rows['change'])}" for kind, rows in wrong.groupby("kind", sort=False)
    )
    found = f"Wrong in silence after a change of: {silent}" if silent else "Nothing went wrong in silence"
    sheet.title(found, "Each cell a fresh process that uses the artifact after the change.")
    there = [name for name in LOOKS if name in set(cells["outcome"])]
    sheet.legend([(f"{name}: {LOOKS[name][1]}", key(LOOKS[name][0])) for name in there])
    drawn = []
    for cell in cells.to_dict("records"):
        place, outcome = (kinds.index(cell["kind"]), changes.index(cell["change"])), str(cell["outcome"])
        drawn.append(Cell(*place, LOOKS.get(outcome, ("#FFFFFF", ""))[0], outcome))
    matrix(sheet, kinds, changes, drawn, height=ROW, xlabel="what changed since it was made")
    for kind, rows in cells.groupby("kind", sort=False):
        sheet.say(f"{kind}: " + ", ".join(f"{c['change']} {c['outcome']}" for c in rows.to_dict("records")))
    return sheet.finish(report.label)
