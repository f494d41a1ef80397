"""Drills as a picture: the table drill by defence."""

from __future__ import annotations

from typing import Any

import pandas as pd

from course.shared.matrix import Cell, key, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

__all__ = ["figure"]

# what came of a cell: a colour and the words in it, from what one wants to what one fears
LOOKS: dict[str, tuple[str, str]] = {
    "caught": ("#009E73", "caught"),
    "right": ("#DDDDDD", "right"),
    "timeout": ("#CC79A7", "timeout"),
    "ended": ("#56B4E9", "ended by timeout"),
    "error": ("#F0E442", "other error"),
    "crash": ("#E69F00", "crash"),
    "hung": ("#D55E00", "hung"),
    "warned": ("#555555", "wrong, warned"),
    "wrong": ("#000000", "wrong, silent"),
}
# what those words mean that do not say it themselves; a figure's legend explains the ones that stand in it
MEANS = {
    "caught": "an error that names the difference, or a rank that has not come",
    "timeout": "an error that names the rank that has not come, and no difference",
    "ended": "the operation is named, and not the rank that it waits for",
    "error": "ends with an error that is none of the defence's",
    "warned": "ends with other numbers and a warning",
    "wrong": "ends with other numbers and no error",
}


@styled
def figure(report: Any, title: str | None = None, what: str = "what rank 1 does otherwise") -> Figure:
    """Draw the table `outcomes` of a report: what came of each drill under each defence.

    Rows stand by their outcomes from the first defence on, the worst above. `what` names the rows. Raises ValueError
    for a missing table.
    """
    found = table(report, "outcomes", ["drill", "defence", "outcome"])
    sheet = Sheet()
    if found.empty:
        return empty_figure(sheet, "No drill was run", report.label, title)
    defences, worst = list(pd.unique(found["defence"])), list(reversed(LOOKS))
    came = {(row["drill"], row["defence"]): str(row["outcome"]) for row in found.to_dict("records")}
    ends = {drill: [came.get((drill, name), "") for name in defences] for drill in pd.unique(found["drill"])}
    drills = sorted(ends, key=lambda drill: [worst.index(how) if how in worst else -1 for how in ends[drill]])
    sheet.title(
        title or _finding(found), f"Rows: {what}, the worst end first. Columns: the defence that is on."
    )
    seen = [how for how in worst if how in set(found["outcome"])]
    legend = [": ".join(filter(None, [LOOKS[how][1], MEANS.get(how)])) for how in seen]
    sheet.legend([(words, key(LOOKS[how][0])) for how, words in zip(seen, legend, strict=True)])
    sheet.say("; ".join(legend))
    cells = []
    for row in found.to_dict("records"):
        colour, words = LOOKS.get(str(row["outcome"]), ("#FFFFFF", str(row["outcome"])))
        place = drills.index(row["drill"]), defences.index(row["defence"])
        cells.append(Cell(*place, colour, words, bold=row["outcome"] == "caught"))
    matrix(sheet, drills, [_head(name) for name in defences], cells)
    for drill in drills:
        sheet.say(f"{drill}: {', '.join(map(' '.join, zip(defences, ends[drill], strict=True)))}")
    return sheet.finish(report.label)


def _head(name: str) -> str:
    return {"none": "no defence"}.get(name, name.replace(" ", "\n"))


def _finding(found: pd.DataFrame) -> str:
    noticed = found[found["outcome"] == "caught"]
    if noticed.empty:
        return "No defence notices any of these drills"
    by, every = noticed.groupby("defence", sort=False)["drill"].nunique(), found["drill"].nunique()
    best = f"{by.idxmax()}, {by.max()} of {every}"
    if by.max() == every:
        return f"One defence notices all drills: {best}"
    return f"No single defence notices every drill. The widest: {best}; all together {noticed['drill'].nunique()}"
