"""Figures of lesson 11: the collectives of each rank by group, and what came of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from course.shared import drill_figures as divergence
from labkit.views import style
from labkit.views.style import Figure, Sheet, patch, styled
from labkit.views.tables import need, table

__all__ = ["calls_by_group", "figure", "mistakes"]

LOOKS = {"world": "#E69F00", "mesh": "#0072B2"}  # by group
INSIDE = {"mesh": "white"}  # the colour of a letter, by group
OPERATIONS = {"broadcast": "B", "all_reduce": "R"}  # the letter of a box
OUTSIDE = "–"  # a rank that does not call
LEFT, LANE = 0.75, 0.42  # inches


def figure(report: Any) -> Figure:
    """Draw the report `mesh_or_world` of lesson 11: the collectives of each rank by group.

    Raises ValueError for a missing table.
    """
    return calls_by_group(table(report, "calls", ["rank", "number", "group"]), report.label)


@styled
def calls_by_group(calls: pd.DataFrame, label: str = "") -> Figure:
    """Draw each rank's collectives as a lane of boxes, in the colour of their group and with a letter each.

    Collectives that ranks call together share a column: the n-th one on a group is the same for all its ranks.

    Args:
        calls: a row for each collective of each rank: rank, number (its place among those of the rank) and group. With
            operation, a box has its first letter; with request, the columns of one request stand between two lines,
            with its text above.
        label: the run label.
    """
    calls = need(calls, ["rank", "number", "group"], "calls").sort_values(["rank", "number"])
    calls = calls.assign(nth=calls.groupby(["rank", "group"]).cumcount())
    ranks = sorted(set(calls["rank"]))
    columns: dict[tuple[str, int], int] = {}
    begins: dict[int, str] = {}
    for rank in (
        calls["rank"].value_counts().index
    ):  # the order of those that call most is the order of the columns
        before = None
        for row in calls[calls["rank"] == rank].itertuples():
            at = columns.setdefault((row.group, row.nth), len(columns))
            request = getattr(row, "request", "")
            if at == len(columns) - 1 and request != before:
                begins[at] = request
            before = request
    totals = calls.groupby(["rank", "group"]).size().unstack(fill_value=0)
    mesh = totals.get("mesh", pd.Series(0, index=totals.index))
    sheet = Sheet()
    sheet.title(
        _called(mesh, ranks),
        "One box is one collective; a column is one collective of all ranks that call it. Columns are in order, not in "
        "time.",
    )
    marks = {
        name: OPERATIONS.get(name, name[:1].upper()) for name in calls.get("operation", pd.Series()).unique()
    }
    sheet.legend(
        [(f"on the {name}", patch(colour)) for name, colour in LOOKS.items()]
        + [(name, _letter(mark)) for name, mark in marks.items()]
        + [("does not call", _letter(OUTSIDE, style.QUIET))]
    )
    wide, top = sheet.width - LEFT - 0.2, sheet.top + 0.1 + 0.2 * any(begins.values())
    ax = sheet.axes(LEFT, wide, LANE * len(ranks), top=top)
    ax.set(xlim=(0, max(len(columns), 1)), ylim=(len(ranks), 0), xticks=[])
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    ax.tick_params(length=0, labelsize=style.SMALL, labelcolor=style.INK)
    written = {"ha": "center", "va": "center", "fontsize": style.SMALL}
    for at, request in begins.items():
        if request:
            ax.axvline(at, color=style.QUIET, linewidth=0.8, ymax=1.12, clip_on=False)
            ax.text(at + 0.12, -0.08, request, fontsize=style.SMALL, va="bottom", color=style.INK)
    empty = {(at, i) for at in columns.values() for i in range(len(ranks))}
    for row in calls.itertuples():
        at, i = columns[row.group, row.nth], ranks.index(row.rank)
        empty.discard((at, i))
        colour = LOOKS.get(row.group, "#BBBBBB")
        ax.add_patch(Rectangle((at + 0.08, i + 0.12), 0.84, 0.76, facecolor=colour, linewidth=0))
        if marks:
            ax.text(
                at + 0.5, i + 0.5, marks[row.operation], color=INSIDE.get(row.group, style.INK), **written
            )
    for at, i in empty:
        ax.text(at + 0.5, i + 0.5, OUTSIDE, color=style.QUIET, **written)
    sheet.top = top + LANE * len(ranks) + 0.15
    for rank in ranks:
        said = ", ".join(f"{totals.loc[rank].get(name, 0)} on the {name}" for name in LOOKS)
        sheet.say(f"rank {rank}: {said}")
    return sheet.finish(label)


def _letter(mark: str, colour: str = style.INK) -> Callable[[Any, float, float], Any]:
    """A legend's key: the letter that stands in a box."""
    return lambda ax, x, y: ax.text(
        x + 0.1, y + 0.06, mark, ha="center", va="center", fontsize=style.SMALL, color=colour
    )


def _called(mesh: pd.Series, ranks: list[Any]) -> str:
    out = [rank for rank in ranks if not mesh[rank]]
    inside = {int(mesh[rank]) for rank in ranks if rank not in out}
    if len(inside) != 1 or not out:
        return "The mesh ranks called different numbers of collectives"
    who = f"rank{'s' * (len(out) > 1)} {', '.join(map(str, out))}"
    return f"Every mesh rank called {inside.pop()} collectives of the mesh, {who} none"


def mistakes(report: Any) -> Figure:
    """Draw the report `wrong_group` of lesson 11: what came of each mistake under each defence."""
    title = None
    if len(found := table(report, "outcomes", ["drill", "defence", "outcome"])):
        plain = found[found["defence"] == "none"]["outcome"].value_counts()
        caught = found[(found["defence"] == "DETAIL") & (found["outcome"] == "caught")]
        title = (
            f"Of {found['drill'].nunique()} mistakes {plain.get('hung', 0)} hang and {(n := plain.get('wrong', 0))} "
            f"{'is' if n == 1 else 'are'} silently wrong; DETAIL catches {len(caught)}"
        )
    return divergence.figure(report, title=title, what="the mistake")
