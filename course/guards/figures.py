"""The guard sweep as a picture: dimension by step."""

from __future__ import annotations

import pandas as pd

from course.shared.matrix import Cell, key, matrix
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled

__all__ = ["sweep_matrix"]

ROW = 0.34  # inches
# a state: its colour, dark for what hurts, and the letter that tells it without the colour
LOOKS: dict[str, tuple[str, str, str]] = {
    "first compile": ("#BBBBBB", "1st", "first compile"),
    "reused": ("#E8F1F8", "", "reused"),
    "recompiled": ("#E69F00", "R", "recompiled"),
    "went dynamic": ("#56B4E9", "D", "recompiled, and went dynamic"),
    "gave up": ("#000000", "X", "gave up: runs eagerly"),
}


@styled
def sweep_matrix(steps: pd.DataFrame, label: str = "") -> Figure:
    """Draw what each call of a sweep did under the default policy.

    Args:
        steps: a row for each rank and call, with the columns ranks, rank, policy, dimension, step, value and state.
        label: the run label.

    Returns:
        The figure.
    """
    by_call = steps.groupby(["policy", "dimension", "step"])
    alike = "all ranks alike" if (by_call["state"].nunique() == 1).all() else "AND THE RANKS DIFFER"
    count = int(steps["ranks"].max())
    who = "one rank" if count == 1 else f"rank 0 of {count}, {alike}"
    mine = steps[(steps["rank"] == 0) & (steps["policy"] == "default")]
    sheet = Sheet()
    if mine.empty:
        return empty_figure(sheet, "Nothing was walked under the default policy", label)
    rows, many = list(pd.unique(mine["dimension"])), int(mine["step"].max()) + 1
    sheet.title(_finding(mine), f"What varies, and its value at each call; {who}.")
    used = [state for state in LOOKS if state in set(mine["state"])]
    sheet.legend([(_key(state), key(LOOKS[state][0])) for state in used])
    drawn = []
    for row in mine.to_dict("records"):
        colour, mark, _ = LOOKS.get(str(row["state"]), ("#FFFFFF", "?", ""))
        words = f"{mark} {row['value']}".strip()
        drawn.append(Cell(rows.index(row["dimension"]), int(row["step"]), colour, words))
    calls = [str(i + 1) for i in range(many)]
    matrix(sheet, rows, calls, drawn, height=ROW, size=style.SMALL - 1, xlabel="call")
    for name, cells in mine.groupby("dimension", sort=False):
        sheet.say(f"{name}: " + ", ".join(f"{c['value']} {c['state']}" for c in cells.to_dict("records")))
    return sheet.finish(label)


def _key(state: str) -> str:
    mark = LOOKS[state][1]
    return f"{mark}: {LOOKS[state][2]}" if mark else LOOKS[state][2]


def _finding(mine: pd.DataFrame) -> str:
    by = mine.groupby("dimension", sort=False)["state"].agg(list)
    gave_up = sum("gave up" in states for states in by)
    once = sum(sum(s in ("recompiled", "went dynamic") for s in states) == 1 for states in by)
    return f"Of {len(by)} things that vary, {once} compile one version more and {gave_up} end in giving up"
