"""Rank 0 beside the mesh: one served call, what each rank did in every call, times of a step, and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.lessons.shared import drill_figures as divergence
from labkit.lessons.shared.keys import patch
from labkit.views import style
from labkit.views.compare import timings
from labkit.views.forwards import Forward, take_forward, variant_record
from labkit.views.strip import strip
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import table

__all__ = ["figure", "mistakes"]

LOOKS = {"world": "#E69F00", "mesh": "#0072B2"}  # by group
LEFT, LANE = 1.25, 0.62  # inches


def figure(report: Any, which: str = "strip", **options: Any) -> Figure:
    """Draw the report of `labkit.lessons.mesh.experiment`.

    'strip': one served call, a lane a rank (`call` chooses which, the third by default). 'plans': what every rank
    called on which group, call by call. 'cost': the times of a step. Raises ValueError for another figure, a call that
    was not served, or a missing table.
    """
    draws: dict[str, Callable[..., Figure]] = {"strip": _strip, "plans": _plans, "cost": _cost}
    draw = draws.get(which)
    if draw is None:
        raise ValueError(f"no figure {which!r} of this report: there are strip, plans, cost")
    return draw(report, **options)


def mistakes(report: Any) -> Figure:
    """Draw the report of `labkit.lessons.mesh.wrong_group`: what came of each mistake under each defence."""
    title = None
    if len(found := table(report, "outcomes", ["drill", "defence", "outcome"])):
        plain = found[found["defence"] == "none"]["outcome"].value_counts()
        caught = found[(found["defence"] == "domain") & (found["outcome"] == "caught")]
        title = (
            f"Of {found['drill'].nunique()} mistakes {plain.get('hung', 0)} hang and {plain.get('wrong', 0)} are "
            f"silently wrong; inside a domain {len(caught)} are caught"
        )
    return divergence.figure(report, title=title, what="the mistake")


def _strip(report: Any, call: int = 2, **options: Any) -> Figure:
    counts = table(report, "counts", ["rank", "role"])
    groups = [[int(r) for r in mine["rank"]] for _, mine in counts.groupby("role", sort=False)]
    record = variant_record(report)
    record.counts = None  # they are of all calls together
    run = take_forward(record, call, alike=groups)
    title = _served(run, groups, call)
    return strip(run, **{"label": report.label, "title": title, "window": "whole", **options})


def _served(run: Forward, groups: list[list[int]], call: int) -> str:
    if run.difference is not None:
        return f"Call {call}: ranks that have to be alike part ways at step {run.difference.index}"
    parts = []
    for ranks in groups:
        regions = int(run.counts.loc[ranks[0], "regions"])
        does = f"{regions or 'no'} compiled region{'s' if regions > 1 else ''}"
        if len(ranks) == 1:
            parts.append(f"rank {ranks[0]} runs {does}")
        else:
            parts.append(f"ranks {' and '.join(map(str, ranks))} run {does} each, and are alike")
    return f"Call {call}: {'; '.join(parts)}"


@styled
def _plans(report: Any) -> Figure:
    heard = table(report, "heard", ["rank", "call", "action", "index", "x", "compiled"])
    used = table(report, "groups", ["rank", "call", "group", "op", "calls"])
    ranks, calls = sorted(set(heard["rank"])), sorted(set(heard["call"]))
    sheet = Sheet()
    mesh = used[used["group"] == "mesh"].groupby("rank")["calls"].sum()
    sheet.title(
        _called(mesh, ranks),
        "Collectives of each rank in each call, by group; ◆ a graph was compiled. Over each column, rank 0's plan.",
    )
    sheet.legend([(f"on the {name}", patch(colour)) for name, colour in LOOKS.items()])
    wide = (sheet.width - LEFT - 0.2) / len(calls)
    ax = sheet.axes(LEFT, wide * len(calls), LANE * len(ranks), top=sheet.top + 0.5)
    ax.set(xlim=(0, len(calls)), ylim=(len(ranks), 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    first = heard[heard["rank"] == ranks[0]].set_index("call")
    ax.set_xticks([i + 0.5 for i in range(len(calls))], [_head(first.loc[call]) for call in calls])
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=style.SMALL, labelcolor=style.INK)
    most = max(used.groupby(["rank", "call", "group"])["calls"].sum(), default=1)
    for lane, rank in enumerate(ranks):
        for column, call in enumerate(calls):
            mine = used[(used["rank"] == rank) & (used["call"] == call)].groupby("group")["calls"].sum()
            built = heard[(heard["rank"] == rank) & (heard["call"] == call)]["compiled"].sum()
            _cell(ax, column, lane, mine, int(most), int(built))
    sheet.top += 0.5 + LANE * len(ranks) + 0.15
    for rank in ranks:
        mine = used[used["rank"] == rank].groupby("group")["calls"].sum()
        graphs = heard[heard["rank"] == rank]["compiled"].sum()
        said = ", ".join(f"{int(mine.get(name, 0))} on the {name}" for name in LOOKS)
        sheet.say(f"rank {rank}: {said}, {int(graphs)} graphs")
    return sheet.finish(report.label)


def _called(mesh: pd.Series, ranks: list[Any]) -> str:
    out = [rank for rank in ranks if not mesh.get(rank, 0)]
    inside = {int(mesh.get(rank, 0)) for rank in ranks if rank not in out}
    if len(inside) != 1 or not out:
        return "The mesh ranks called different numbers of collectives"
    who = f"rank{'s' * (len(out) > 1)} {', '.join(map(str, out))}"
    return f"Every mesh rank called {inside.pop()} collectives of the mesh, {who} none"


def _head(plan: Any) -> str:
    what = "warmup" if plan["index"] == -1 else str(plan["action"])
    shape = str(plan["x"]).rpartition(" ")[0] if plan["x"] != "-" else ""
    return f"{what}\n{shape}"


def _cell(ax: Axes, column: int, lane: int, mine: pd.Series, most: int, built: int) -> None:
    """Two bars, their length the number of collectives."""
    for i, (name, colour) in enumerate(LOOKS.items()):
        n, y = int(mine.get(name, 0)), lane + 0.16 + 0.36 * i
        if n:
            width = 0.62 * n / most
            ax.add_patch(Rectangle((column + 0.06, y), width, 0.3, facecolor=colour, linewidth=0))
            ax.text(column + 0.06 + width + 0.03, y + 0.15, str(n), va="center", fontsize=style.SMALL)
    if built:
        ax.text(column + 0.94, lane + 0.31, "◆", ha="right", va="center", fontsize=style.NORMAL)


def _cost(report: Any) -> Figure:
    samples = table(report, "samples", ["evidence", "variant", "rank", "round", "seconds"])
    mesh = samples[samples["rank"] > 0]
    said = []
    for verdict in report.verdicts:
        if verdict.a == "every collective":
            told = "" if verdict.outcome != "cannot tell" else ", not told from noise"
            has = f"it has {verdict.case['busy_ms']:g} ms to do{told}"
            said.append(f"{verdict.ratio:.1f} times as long ({has})")
    title = f"With rank 0 in every collective a step takes {' and '.join(said)}"
    return timings(mesh, title=title, label=report.label, per="step")
