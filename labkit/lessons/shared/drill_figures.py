"""Drills as pictures: the table drill by defence, and the collectives of each rank up to where they part."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table, table_of

__all__ = ["figure", "first_difference"]

# what came of a cell: a colour and the words in it, from what one wants to what one fears
LOOKS: dict[str, tuple[str, str]] = {
    "caught": ("#009E73", "caught"),
    "repaired": ("#56B4E9", "repaired"),
    "right": ("#DDDDDD", "right"),
    "nothing compiled": ("#FFFFFF", "–"),
    "error": ("#F0E442", "other error"),
    "crash": ("#E69F00", "crash"),
    "hung": ("#D55E00", "hung"),
    "wrong": ("#000000", "wrong, silent"),
}
MEANS = (
    "caught: an error that names the difference; repaired: right, where it is not without; other error: ends, and does "
    "not say why; –: no compiled code to act on."
)
BOX, LANE = 1.5, 0.5
CONTROL = "at torch's default timeout"


@styled
def figure(
    report: Any,
    which: str = "matrix",
    drill: str | None = None,
    title: str | None = None,
    what: str = "what rank 1 does otherwise",
) -> Figure:
    """Draw the report of `labkit.lessons.symmetry.experiment`.

    'matrix': what came of each drill under each defence; `what` names the rows. 'difference': the collectives of each
    rank in one drill without a defence, the first that differ outlined. Raises ValueError for another figure, a drill
    that the report does not have, or a missing table.
    """
    if which == "difference":
        calls = table(report, "collectives", ["drill", "rank", "number", "op", "what", "place", "ended"])
        if drill not in set(calls["drill"]):
            there = ", ".join(pd.unique(calls["drill"])) or "none"
            raise ValueError(f"no collectives of a drill {drill!r} in this report: there is {there}")
        return first_difference(calls[calls["drill"] == drill], label=report.label, title=title)
    if which != "matrix":
        raise ValueError(f"no figure {which!r} of this report: there is matrix, difference")
    found = table(report, "outcomes", ["drill", "defence", "outcome"])
    sheet = Sheet()
    if found.empty:
        return empty_figure(sheet, "No drill was run", report.label, title)
    drills, defences = list(pd.unique(found["drill"])), list(pd.unique(found["defence"]))
    sheet.title(title or _finding(found), MEANS + _arranged(table_of(report, "arranged")))
    cells = []
    for row in found.to_dict("records"):
        colour, words = LOOKS.get(str(row["outcome"]), ("#FFFFFF", str(row["outcome"])))
        place = drills.index(row["drill"]), defences.index(row["defence"])
        cells.append(Cell(*place, colour, words, bold=row["outcome"] in ("caught", "repaired")))
    matrix(sheet, drills, [_head(name) for name in defences], cells, ylabel=what)
    for name, rows in found.groupby("drill", sort=False):
        said = (f"{row['defence']} {row['outcome']}" for row in rows.to_dict("records"))
        sheet.say(f"{name}: {', '.join(said)}")
    return sheet.finish(report.label)


@styled
def first_difference(calls: pd.DataFrame, label: str = "", title: str | None = None) -> Figure:
    """Draw each rank's collectives as a lane of boxes, one column a number, and outline the first that differ.

    `calls` has rank, number, op, what (shapes and dtypes), place, ended; one that has not ended is hatched. Raises
    ValueError for a missing column.
    """
    calls = need(calls, ["rank", "number", "op", "what", "place", "ended"], "collectives")
    sheet = Sheet()
    if calls.empty:
        return empty_figure(sheet, "No collective was recorded", label, title)
    calls = calls.drop_duplicates(["rank", "number"], keep="last")
    ranks, numbers = sorted(set(calls["rank"])), sorted(set(calls["number"]))[-6:]
    first, why = _parting(calls, ranks, numbers)
    sheet.title(
        title or (f"The ranks part at collective {first}: {why}" if first else why),
        "Each box is a collective in torch's flight recorder: name, shape and dtype, line. Hatched: not finished.",
    )
    at = numbers.index(first) if first in numbers else None
    wide = (sheet.width - 1.0 - 0.2) / len(numbers)
    ax = sheet.axes(1.0, wide * len(numbers), (LANE + 0.12) * len(ranks), top=sheet.top + 0.1)
    ax.set(xlim=(0, len(numbers)), ylim=(len(ranks), 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    ax.set_xticks([i + 0.5 for i in range(len(numbers))], [str(n) for n in numbers])
    ax.tick_params(length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    ax.set_xlabel("collective of the group, by number", fontsize=style.SMALL)
    for lane, rank in enumerate(ranks):
        for column, number in enumerate(numbers):
            _box(ax, lane, column, calls[(calls["rank"] == rank) & (calls["number"] == number)], wide)
    if at is not None:
        edge = {"fill": False, "edgecolor": "#D55E00", "linewidth": 2.5, "clip_on": False}
        ax.add_patch(Rectangle((at + 0.01, 0.01), 0.98, len(ranks) - 0.02, **edge))
    sheet.top += 0.1 + (LANE + 0.12) * len(ranks) + 0.45
    for rank in ranks:
        mine = calls[calls["rank"] == rank]
        said = (f"{r['number']} {r['op']} {r['what']}{_place(r)}" for r in mine.to_dict("records"))
        sheet.say(f"rank {rank}: {', '.join(said)}")
    return sheet.finish(label)


def _box(ax: Axes, lane: int, column: int, rows: pd.DataFrame, wide: float) -> None:
    where = (column + 0.04, lane + 0.08)
    if rows.empty:
        edge = {"fill": False, "edgecolor": style.QUIET, "linestyle": ":", "linewidth": 1}
        ax.add_patch(Rectangle(where, 0.92, 0.84, **edge))
        ax.text(column + 0.5, lane + 0.5, "never called", ha="center", va="center", fontsize=style.SMALL)
        return
    row = rows.iloc[0]
    look = {"facecolor": "#CFE5F3", "edgecolor": "#0072B2", "linewidth": 0.8}
    ax.add_patch(Rectangle(where, 0.92, 0.84, hatch=None if row["ended"] else "///", **look))
    lines = [f"{row['op']}", str(row["what"]), str(row["place"]).rpartition("/")[2]]
    text = "\n".join(style.cut(line, wide - 0.2, style.SMALL) for line in lines if line)
    back = {"facecolor": "#CFE5F3", "edgecolor": "none", "pad": 1}
    ax.text(column + 0.5, lane + 0.5, text, ha="center", va="center", fontsize=style.SMALL, bbox=back)


def _parting(calls: pd.DataFrame, ranks: list[Any], numbers: list[Any]) -> tuple[Any, str]:
    """The first number at which ranks called something else, or from another line, and what differs there."""
    by = {(row["rank"], row["number"]): row for row in calls.to_dict("records")}
    for key, words in ((("op", "what"), ""), (("place",), "the same call, from another line")):
        for number in numbers:
            here = {rank: by.get((rank, number)) for rank in ranks}
            seen = {tuple(row[k] for k in key) if row else None for row in here.values()}
            if len(seen) > 1:
                if words:
                    return number, words
                said = (f"rank {r} {_said(row)}" for r, row in here.items())
                return number, ", ".join(said)
    return None, "The flight recorder sees no difference: the reduction and the numbers are not in it"


def _said(row: Any) -> str:
    return f"{row['op']} {row['what']}".strip() if row else "never called it"


def _place(row: Any) -> str:
    return f" at {row['place']}" if row["place"] else ""


def _head(name: str) -> str:
    return {"none": "no defence"}.get(name, name.replace(" ", "\n"))


def _arranged(rows: pd.DataFrame | None) -> str:
    """What stands behind drills that rest on a sleep and a short timeout, a sentence each."""
    if rows is None:
        return ""
    return "".join(
        f" {row['drill']} is arranged: a compile sleeps {row['sleep_s']:g} s, collectives time out after "
        f"{row['timeout_s']:g} s; at torch's default timeout it ends {row[CONTROL]}."
        for row in rows.dropna(subset=["timeout_s"]).to_dict("records")
    )


def _finding(found: pd.DataFrame) -> str:
    noticed = found[found["outcome"].isin(["caught", "repaired"])]
    if noticed.empty:
        return "No defence notices any of these drills"
    by, every = noticed.groupby("defence", sort=False)["drill"].nunique(), found["drill"].nunique()
    best = f"{by.idxmax()}, {by.max()} of {every}"
    if by.max() == every:
        return f"One defence notices all drills: {best}"
    return f"No single defence notices every drill. The widest: {best}; all together {noticed['drill'].nunique()}"
