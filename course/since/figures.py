"""Figures of lesson 17: how many graphs ranks have, and where runs what one process compiled."""

from __future__ import annotations

from typing import Any

import pandas as pd

from course.shared.matrix import Cell, key, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table

__all__ = ["constants", "figure", "portability"]

EQUAL, DIFFERENT = "#009E73", "#E69F00"  # Okabe-Ito
# an outcome: its colour, and what it means; the word itself stands in the cell
OUTCOMES = {
    "right": ("#009E73", "ran what the one compiled, with the right numbers"),
    "right, compiled again": ("#F0E442", "found nothing to use"),
    "refused": ("#56B4E9", "a guard failed"),
    "error": ("#D55E00", "failed while it was used"),
    "wrong": ("#000000", "ran, with other numbers"),
    "not made": ("#BBBBBB", "could not be stored"),
}


def figure(report: Any) -> Figure:
    """Draw the table `graphs` of the lesson's report; see `constants`. Raises ValueError without it."""
    return constants(table(report, "graphs", ["program", "ranks", "switch", "graphs"]), report.label)


@styled
def constants(graphs: pd.DataFrame, label: str) -> Figure:
    """Draw programs against numbers of ranks, without and with the switch: how many different graphs there are.

    Args:
        graphs: a row each, with the columns program, ranks, switch ('off' or 'on') and graphs.
        label: what was run.
    """
    graphs = need(graphs, ["program", "ranks", "switch", "graphs"], "graphs")
    sheet = Sheet()
    if graphs.empty:
        return empty_figure(sheet, "No program was compiled", label)
    most = graphs.groupby(["program", "switch"], sort=False)["graphs"].max().unstack()
    differ, equal = most["off"] > 1, (most["off"] > 1) & (most["on"] == 1)
    sheet.title(
        f"Of {differ.sum()} programs whose graphs differ by rank, the switch makes {equal.sum()} equal",
        "Each cell: how many different graphs the ranks have. 1 means that all have equal text.",
    )
    sheet.legend([("equal text", key(EQUAL)), ("different", key(DIFFERENT))])
    names = list(dict.fromkeys(graphs["program"]))
    columns = list(dict.fromkeys(zip(graphs["ranks"], graphs["switch"], strict=True)))
    cells = [
        Cell(
            names.index(row.program), columns.index((row.ranks, row.switch)),
            EQUAL if row.graphs == 1 else DIFFERENT, str(row.graphs),
        )
        for row in graphs.itertuples()
    ]  # fmt: skip
    matrix(sheet, names, [f"{size} ranks,\nswitch {switch}" for size, switch in columns], cells, height=0.26)
    for name, row in most.iterrows():
        sheet.say(f"{name}: {row['off']} graphs without the switch, {row['on']} with it")
    return sheet.finish(label)


@styled
def portability(found: pd.DataFrame, label: str) -> Figure:
    """Draw what became on each rank of what one process compiled.

    Args:
        found: a row each, with the columns store, form, switch, rank and outcome.
        label: what was run.
    """
    found = need(found, ["store", "form", "switch", "rank", "outcome"], "carried")
    sheet = Sheet()
    if found.empty:
        return empty_figure(sheet, "Nothing was stored", label)
    points = found[["store", "form", "switch"]].agg(", ".join, axis=1)
    everywhere = (
        found.assign(point=points).groupby("point", sort=False)["outcome"].agg(lambda o: set(o) == {"right"})
    )
    sheet.title(
        f"In {everywhere.sum()} of {len(everywhere)} ways every rank runs what one process compiled",
        "Each row is a store, how the sum is asked for, and the switch. Each cell is a rank.",
    )
    there = [name for name in OUTCOMES if name in set(found["outcome"])]
    sheet.legend([(f"{name}: {OUTCOMES[name][1]}", key(OUTCOMES[name][0])) for name in there])
    names, ranks = list(everywhere.index), sorted(set(found["rank"]))
    cells = [
        Cell(names.index(point), ranks.index(row.rank), OUTCOMES[row.outcome][0], row.outcome)
        for point, row in zip(points, found.itertuples(), strict=True)
    ]
    matrix(sheet, names, [f"rank {rank}" for rank in ranks], cells, height=0.3)
    for name, rows in found.groupby(points, sort=False):
        sheet.say(f"{name}: " + ", ".join(f"rank {row.rank} {row.outcome}" for row in rows.itertuples()))
    return sheet.finish(label)
