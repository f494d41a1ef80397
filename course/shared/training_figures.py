"""Reports of training as pictures: memory by route, and when collectives start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labkit.views import style
from labkit.views.matrix import key
from labkit.views.style import Figure, Sheet, empty_figure, mark, styled
from labkit.views.tables import need, table_of

__all__ = ["figure"]

ROW = 0.34  # inches
LINES = ("#000000", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00")
MEMORY = {"parameters": "#0072B2", "gradients": "#56B4E9", "Adam's moments": "#E69F00"}


@styled
def figure(report: Any) -> Figure:
    """Draw memory by route, or where collectives start as a share of backward.

    Raises ValueError for a report with none of these.
    """
    for table, draw in DRAWN.items():
        found = table_of(report, table)
        if found is not None:
            if found.empty:
                return empty_figure(Sheet(), "nothing was measured", report.label)
            return draw(report, found)
    raise ValueError(f"report {report.name!r} has no picture: it has {', '.join(report.tables)}")


def _memory(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["route", "rank", "what", "bytes"], "memory")
    worst = table.groupby(["route", "what"], sort=False)["bytes"].max().unstack("what") / 1e3
    worst = worst.loc[list(dict.fromkeys(table["route"]))]
    kept = worst[list(MEMORY)].sum(axis=1)
    peak = kept - worst["gradients"] + worst["peak of a step"]  # gradients are part of what a step adds
    sheet = Sheet()
    least, most = peak.idxmin(), peak.idxmax()
    sheet.title(
        f"At the peak of a step a rank holds {peak[most]:,.0f} kB with {most}"
        + (f", {peak[least]:,.0f} kB with {least}" if peak[least] < peak[most] else " and with every other"),
        "Of the rank that holds most. Bars: what stays between steps. Diamond: what is there at the peak of a step.",
    )
    sheet.legend(
        [
            *((name, key(colour)) for name, colour in MEMORY.items()),
            ("at the peak of a step", mark("D", style.INK, 5)),
        ]
    )
    left = 0.3 + max(style.text_width(str(name), style.NORMAL) for name in worst.index)
    ax = sheet.axes(left, sheet.width - left - 0.5, ROW * len(worst))
    sheet.top += 0.5
    for i, (name, row) in enumerate(worst.iterrows()):
        edge = 0.0
        for what, colour in MEMORY.items():
            ax.barh(i, row[what], left=edge, color=colour, edgecolor="white", height=0.62)
            edge += row[what]
        ax.plot([peak[name]], [i], "D", color=style.INK, markersize=5)
        sheet.say(f"{name}: {edge:.0f} kB kept, {peak[name]:.0f} kB at the peak")
    ax.set(ylim=(len(worst) - 0.4, -0.6), xlim=(0, None), xlabel="kB a rank")
    ax.set_yticks(range(len(worst)), worst.index)
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    return sheet.finish(report.label)


def _starts(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["route", "rank", "phase", "share"], "collectives")
    mine = table[table["phase"] == "backward"]
    names = list(dict.fromkeys(table["route"]))
    sheet = Sheet()
    early = mine[mine["share"] < 1].groupby("route").size()
    sheet.title(
        f"Started while products are left: {', '.join(f'{n} {int(early.get(n, 0))}' for n in names)}",
        "Start of every collective of backward on every rank; at 100 % backward's last matrix product is done.",
    )
    left = 0.3 + max(style.text_width(str(name), style.NORMAL) for name in names)
    ax = sheet.axes(left, sheet.width - left - 0.5, 0.5 * len(names))
    sheet.top += 0.5
    ranks = sorted(mine["rank"].unique())
    for i, name in enumerate(names):
        rows = mine[mine["route"] == name]
        for j, rank in enumerate(ranks):
            these = rows[rows["rank"] == rank]["share"] * 100
            y = i + (j - (len(ranks) - 1) / 2) * 0.34
            look = {"color": LINES[2 if j % 2 else 3], "markersize": 6, "markeredgecolor": "white"}
            ax.plot(these, [y] * len(these), "os"[j % 2], **look)
        first = rows[rows["rank"] == ranks[0]]["share"] * 100 if ranks else rows["share"]
        sheet.say(
            f"{name}: {len(first)} collectives in backward, rank 0 at {', '.join(f'{v:.0f} %' for v in first)}"
        )
    ax.axvline(100, color=style.INK, linewidth=1.2)
    ax.set(
        ylim=(len(names) - 0.4, -0.6),
        xlim=(0, max(110, mine["share"].max() * 104)),
        xlabel="start, % of backward's products",
    )
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    sheet.legend(
        [(f"rank {rank}", mark("os"[j % 2], LINES[2 if j % 2 else 3], 6)) for j, rank in enumerate(ranks)]
    )
    return sheet.finish(report.label)


DRAWN: dict[str, Callable[[Any, pd.DataFrame], Figure]] = {
    "memory": _memory,
    "collectives": _starts,
}
