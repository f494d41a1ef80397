"""The guard sweep as pictures: dimension by step, policy by step, and what a step costs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.views import style
from labkit.views.matrix import Cell, key, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

__all__ = ["figure", "swept"]

LEFT, ROW = 2.35, 0.34  # inches
# a state: its colour, dark for what hurts, and the letter that tells it without the colour
LOOKS: dict[str, tuple[str, str, str]] = {
    "first compile": ("#BBBBBB", "1st", "first compile"),
    "reused": ("#E8F1F8", "", "reused"),
    "recompiled": ("#E69F00", "R", "recompiled"),
    "went dynamic": ("#56B4E9", "D", "recompiled, and went dynamic"),
    "gave up": ("#000000", "X", "gave up: runs eagerly"),
}
COMPILERS = {"eager": "for Dynamo alone", "inductor": "with Inductor"}
COLUMNS = ["ranks", "rank", "policy", "dimension", "step", "value", "state"]


@styled
def figure(report: Any, which: str = "map", ranks: int | None = None) -> Figure:
    """Draw the report of `labkit.lessons.guards.experiment`.

    'map': dimension by step under the default policy. 'policies': each size under each policy, by step. 'cost': what
    calls take beside each other, and compiles. ranks: how many of them, by default the most there are.
    Raises ValueError for another figure, a number of ranks that was not run, or a missing table.
    """
    if which == "cost":
        return _cost(report)
    if which not in ("map", "policies"):
        raise ValueError(f"no figure {which!r} of this report: there is map, policies, cost")
    steps = table(report, "steps", COLUMNS)
    there = sorted(set(steps["ranks"]))
    chosen = max(there, default=0) if ranks is None else ranks
    if steps.empty or chosen not in there:
        if steps.empty:
            return empty_figure(Sheet(), "No call was made", report.label)
        raise ValueError(f"no run with {chosen} ranks in this report: there is {', '.join(map(str, there))}")
    return swept(steps[steps["ranks"] == chosen], which, report.label)


@styled
def swept(steps: pd.DataFrame, which: str = "map", label: str = "") -> Figure:
    """Draw what each call of a sweep did.

    Args:
        steps: a row for each rank and call, with the columns ranks, rank, policy, dimension, step, value and state.
        which: 'map' for the dimensions under the default policy, 'policies' for each size under each policy.
        label: the run label.

    Returns:
        The figure.
    """
    mine = steps[steps["rank"] == 0]
    by_call = steps.groupby(["policy", "dimension", "step"])
    alike = "all ranks alike" if (by_call["state"].nunique() == 1).all() else "AND THE RANKS DIFFER"
    count = int(steps["ranks"].max())
    who = "one rank" if count == 1 else f"rank 0 of {count}, {alike}"
    if which == "map":
        mine = mine[mine["policy"] == "default"].assign(row=lambda t: t["dimension"])
        return _grid(mine, _finding(mine), f"What varies, and its value at each call; {who}.", label)
    mine = mine[mine["policy"].groupby(mine["dimension"]).transform("nunique") > 1]
    if mine.empty:
        return empty_figure(Sheet(), "No size was walked under two policies", label)
    mine = mine.assign(row=mine["dimension"] + ", " + mine["policy"])
    mine = mine.sort_values("dimension", ascending=False, kind="stable")
    return _grid(mine, _best(mine), f"The same sizes under each policy; {who}.", label)


def _grid(mine: pd.DataFrame, title: str, subtitle: str, label: str) -> Figure:
    sheet = Sheet()
    if mine.empty:
        return empty_figure(sheet, "Nothing was walked under the default policy", label)
    rows, many = list(pd.unique(mine["row"])), int(mine["step"].max()) + 1
    sheet.title(title, subtitle)
    used = [state for state in LOOKS if state in set(mine["state"])]
    sheet.legend([(_key(state), key(LOOKS[state][0])) for state in used])
    drawn = []
    for row in mine.to_dict("records"):
        colour, mark, _ = LOOKS.get(str(row["state"]), ("#FFFFFF", "?", ""))
        words = f"{mark} {row['value']}".strip()
        drawn.append(Cell(rows.index(row["row"]), int(row["step"]), colour, words))
    calls = [str(i + 1) for i in range(many)]
    matrix(sheet, rows, calls, drawn, height=ROW, size=style.SMALL - 1, xlabel="call")
    for name, cells in mine.groupby("row", sort=False):
        sheet.say(f"{name}: " + ", ".join(f"{c['value']} {c['state']}" for c in cells.to_dict("records")))
    return sheet.finish(label)


def _key(state: str) -> str:
    mark = LOOKS[state][1]
    return f"{mark}: {LOOKS[state][2]}" if mark else LOOKS[state][2]


def _finding(mine: pd.DataFrame) -> str:
    by = mine.groupby("dimension", sort=False)["state"].agg(list)
    gave_up = [str(name) for name, states in by.items() if "gave up" in states]
    once = sum(sum(s in ("recompiled", "went dynamic") for s in states) == 1 for states in by)
    said = f"{once} of {len(by)} dimensions compile once more and are done"
    return f"{said}; {', '.join(gave_up) or 'none'} ends in giving up"


def _best(mine: pd.DataFrame) -> str:
    compiled = mine[mine["state"].isin(["first compile", "recompiled", "went dynamic"])]
    compiles = compiled.groupby("policy")["step"].count()
    fewest, most = compiles.idxmin(), compiles.idxmax()
    return f"Fewest compiles: {fewest}, {compiles.min()}; most: {most}, {compiles.max()}"


def _compared(rounds: pd.DataFrame) -> str:
    """One more compile in reused calls of the same round, for each compiler, with the number of rounds."""
    said = []
    for compiler, rows in rounds[rounds["part"] == "compiles"].groupby("compiler", sort=False):
        by = rows.pivot(index="round", columns="what", values="seconds")
        if {"one more", "reused call"} <= set(by):
            ratios = by["one more"] / by["reused call"]
            said.append(f"{ratios.median():,.0f} {COMPILERS[str(compiler)]} (n={len(ratios)})")
    return f"One more compile, in reused calls: {', '.join(said)}" if said else "What a call costs"


def _cost(report: Any) -> Figure:
    cost = table(report, "cost", ["compiler", "part", "what", "rank", "round", "seconds"])
    sheet = Sheet()
    if cost.empty:
        return empty_figure(sheet, "No cost was measured", report.label)
    rounds = cost.groupby(["compiler", "part", "what", "round"], sort=False)["seconds"].max().reset_index()
    whole = rounds["what"] + ", " + rounds["compiler"].map(COMPILERS).str.removeprefix("for ")
    names = rounds.assign(name=rounds["what"].where(rounds["part"] == "calls", whole))
    order = names.groupby("name")["seconds"].median().sort_values()
    sheet.title(
        _compared(rounds),
        "Seconds of one call, on a logarithmic axis; every dot a round, the slowest rank's; the bar is the median. "
        "Without communication.",
    )
    ax = sheet.axes(LEFT + 0.3, sheet.width - LEFT - 1.6, ROW * len(order))
    ax.set(xscale="log", ylim=(len(order), 0))
    ax.set_yticks([i + 0.5 for i in range(len(order))], list(order.index))
    ax.tick_params(axis="y", length=0, labelsize=style.SMALL + 0.5, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT)
    ax.set_xlabel("seconds a call", fontsize=style.SMALL)
    for i, (name, median) in enumerate(order.items()):
        taken = names.loc[names["name"] == name, "seconds"]
        ax.plot(
            taken, [i + 0.5] * len(taken), "o", color="#0072B2", alpha=0.35, markersize=4, markeredgewidth=0
        )
        ax.plot([median, median], [i + 0.22, i + 0.78], color="#D55E00", linewidth=2)
        ax.annotate(
            f"{_unit(median)}, n={len(taken)}", (1, i + 0.5), xycoords=("axes fraction", "data"),
            xytext=(8, 0), textcoords="offset points", va="center", fontsize=style.SMALL, annotation_clip=False,
        )  # fmt: skip
        sheet.say(
            f"{name}: median {_unit(median)}, {_unit(taken.min())} to {_unit(taken.max())}, n={len(taken)}"
        )
    sheet.top += 0.5
    return sheet.finish(report.label if report.label.startswith("recorded") else "host only")


def _unit(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
