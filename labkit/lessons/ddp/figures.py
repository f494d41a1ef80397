"""The training lesson's reports as pictures: curves, memory, when collectives start, the order of calls, the bubble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labkit.lessons.shared.keys import mark
from labkit.views import style
from labkit.views.matrix import Cell, key, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table_of

__all__ = ["figure"]

ROW = 0.34  # inches
LINES = ("#000000", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00")
MARKS = ("-", "--", ":", "-", "-.", "--")
MEMORY = {"parameters": "#0072B2", "gradients": "#56B4E9", "Adam's moments": "#E69F00"}
CALLS = {
    "all_gather": ("#E69F00", "G", "all_gather"),
    "reduce_scatter": ("#D55E00", "S", "reduce_scatter"),
    "wait": ("#F0E442", "w", "wait"),
    "mm": ("#0072B2", "mm", "matrix product"),
}


@styled
def figure(report: Any) -> Figure:
    """Draw a report of `labkit.lessons.ddp.experiment`; what is drawn follows from what it holds.

    Curves (loss over steps), memory by route, starts of collectives as a share of backward, the order of calls in
    Inductor's code, or time that pipeline stages stand still. Raises ValueError for a report with none of these.
    """
    for table, draw in DRAWN.items():
        found = table_of(report, table)
        if found is not None:
            if found.empty:
                return empty_figure(Sheet(), "nothing was measured", report.label)
            return draw(report, found)
    raise ValueError(f"report {report.name!r} has no picture: it has {', '.join(report.tables)}")


def _curves(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["route", "step", "loss"], "curves")
    sheet = Sheet()
    names = list(dict.fromkeys(table["route"]))
    ends = table.groupby("route", sort=False)["loss"].last()
    sheet.title(_apart(table, names), "Loss of each step on its batch of digits.")
    sheet.legend([(name, _line(i)) for i, name in enumerate(names)])
    ax = sheet.axes(0.75, sheet.width - 1.2, 3.0)
    sheet.top += 0.5
    for i, name in enumerate(names):
        mine = table[table["route"] == name]
        look = {"color": LINES[i % 6], "linestyle": MARKS[i % 6], "linewidth": 2.6 - 0.4 * (i % 4)}
        ax.plot(mine["step"], mine["loss"], **look)
        sheet.say(f"{name}: {ends[name]:.3f} after {int(mine['step'].max())} steps")
    ax.set(xlabel="step", ylabel="loss, nats", ylim=(0, None))
    ax.grid(color=style.FAINT, linewidth=0.7)
    return sheet.finish(report.label)


def _apart(table: pd.DataFrame, names: list[str]) -> str:
    wide = table.pivot(index="step", columns="route", values="loss")
    off = [name for name in names[1:] if (wide[name] - wide[names[0]]).abs().max() > 1e-3]
    if not off:
        return f"All {len(names)} learn the same"
    return f"{', '.join(off)} learns something else than {names[0]}, and {len(names) - 1 - len(off)} the same"


def _line(i: int) -> Callable[..., Any]:
    look = {"color": LINES[i % 6], "linestyle": MARKS[i % 6], "linewidth": 2}
    return lambda ax, x, y: ax.plot([x, x + 0.22], [y + 0.06, y + 0.06], **look)


def _memory(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["route", "rank", "what", "bytes"], "memory")
    worst = table.groupby(["route", "what"], sort=False)["bytes"].max().unstack("what") / 1e3
    worst = worst.loc[list(dict.fromkeys(table["route"]))]
    kept = worst[list(MEMORY)].sum(axis=1)
    sheet = Sheet()
    least, most = kept.idxmin(), kept.idxmax()
    sheet.title(
        f"A rank keeps {kept[most]:.0f} kB ({most}) down to {kept[least]:.0f} kB ({least})",
        "Of the rank that holds most. Bars: what stays between steps. Diamond: with the most that a step adds to it.",
    )
    sheet.legend(
        [
            *((name, key(colour)) for name, colour in MEMORY.items()),
            ("with the peak of a step", mark("D", style.INK, 5)),
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
        # gradients are part of what a step adds
        top = edge - row["gradients"] + row["peak of a step"]
        ax.plot([top], [i], "D", color=style.INK, markersize=5)
        sheet.say(f"{name}: {edge:.0f} kB kept, {top:.0f} kB at most")
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


def _order(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["way", "pass", "calls", "products between"], "order")
    sheet = Sheet()
    by = table.groupby("way", sort=False)["products between"].sum()
    sheet.title(
        f"Products between a collective and its wait: {', '.join(f'{w} {n}' for w, n in by.items())}",
        "The calls of Inductor's code, in order.",
    )
    sheet.legend(
        [
            (f"{mark}: {words}" if mark != words else words, key(colour))
            for colour, mark, words in CALLS.values()
        ]
    )
    most = max(len(text.split()) for text in table["calls"])
    labels, cells = [], []
    for i, row in enumerate(table.to_dict("records")):
        labels.append(f"{row['way']}, {row['pass']}")
        for j, call in enumerate(row["calls"].split()):
            colour, mark, _ = CALLS.get(call, ("#BBBBBB", "?", call))
            cells.append(Cell(i, j, colour, mark))
        sheet.say(f"{labels[-1]}: {row['calls']}")
    matrix(sheet, labels, [""] * most, cells, height=ROW)
    return sheet.finish(report.label)


def _bubble(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["microbatches", "stood still", "formula"], "summary")
    sheet = Sheet()
    first, last = table.iloc[0], table.iloc[-1]
    sheet.title(
        f"Stages stand still {first['stood still']:.0%} of a step with {first['microbatches']:.0f} microbatch, "
        f"{last['stood still']:.0%} with {last['microbatches']:.0f}",
        "Mean of both ranks, median of the rounds; the formula is for equal stages and free messages.",
    )
    ax = sheet.axes(0.75, 5.2, 2.6)
    ax.plot(table["microbatches"], table["stood still"] * 100, "o-", color=LINES[3], label="measured")
    formula = "(stages - 1) / (microbatches + stages - 1)"
    ax.plot(table["microbatches"], table["formula"] * 100, "s--", color=LINES[0], label=formula)
    ax.set(xscale="log", ylim=(0, 100), xlabel="microbatches", ylabel="standing still, %")
    ax.set_xticks(table["microbatches"], [str(m) for m in table["microbatches"]], minor=False)
    ax.minorticks_off()
    ax.grid(color=style.FAINT, linewidth=0.7)
    ax.legend(frameon=False, fontsize=style.SMALL)
    sheet.top += 0.5
    for row in table.to_dict("records"):
        sheet.say(f"{row['microbatches']:.0f}: {row['stood still']:.0%}, by the formula {row['formula']:.0%}")
    return sheet.finish(report.label)


DRAWN: dict[str, Callable[[Any, pd.DataFrame], Figure]] = {
    "curves": _curves,
    "memory": _memory,
    "order": _order,
    "summary": _bubble,
    "collectives": _starts,
}
