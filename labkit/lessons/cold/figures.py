"""Cold and warm as pictures: phases of becoming ready, by rank and by way, and latencies of the first requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.lessons.shared.keys import patch
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

__all__ = ["figure"]

ROW = 0.34  # inches
# a phase: its colour (Okabe-Ito) and a hatch that tells it without the colour
LOOKS = {
    "find and load": ("#56B4E9", None),
    "Dynamo": ("#0072B2", None),
    "AOTAutograd": ("#CC79A7", None),
    "Inductor": ("#009E73", None),
    "CPU instruction check": ("#E69F00", "xxx"),
    "build and load C++": ("#D55E00", "///"),
    "ship": ("#000000", None),
    "run, or wait for a peer": ("#E3E3E3", "..."),
}
LINES = tuple(zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"), "os^DvP", strict=True))


@styled
def figure(report: Any, which: str = "forms", forms: Sequence[str] = ()) -> Figure:
    """Draw the report of `labkit.lessons.cold.experiment`.

    'forms': for each way the phases until its slowest rank was ready. 'waterfall': the phases of every rank on one time
    axis, for the ways in `forms` (the cold one by default). 'requests': how long each of the first requests took.
    Raises ValueError for another figure, a way that was not taken, or a missing table.
    """
    draw = {"forms": _forms, "waterfall": _waterfall, "requests": _requests}.get(which)
    if draw is None:
        raise ValueError(f"no figure {which!r} of this report: there is forms, waterfall, requests")
    spans = table(report, "spans", ["form", "round", "rank", "phase", "from_s", "to_s"])
    there = list(dict.fromkeys(spans["form"]))
    for form in forms:
        if form not in there:
            raise ValueError(f"{form!r} was not taken: there is {', '.join(there)}")
    if spans.empty:
        return empty_figure(Sheet(), "No rank became ready", report.label)
    return draw(report, spans[spans["round"] == spans["round"].min()], list(forms))


def _forms(report: Any, spans: pd.DataFrame, forms: list[str]) -> Figure:
    ends = spans.groupby(["form", "rank"], sort=False)["to_s"].max()
    slowest = {form: ends[form].idxmax() for form in (forms or dict.fromkeys(spans["form"]))}
    order = sorted(slowest, key=lambda form: ends[form].max(), reverse=True)
    rows = [(form, spans[(spans["form"] == form) & (spans["rank"] == slowest[form])]) for form in order]
    sheet = Sheet()
    longest, shortest = ends[order[0]].max(), ends[order[-1]].max()
    sheet.title(
        f"From {_s(longest)} ({order[0]}) to {_s(shortest)} ({order[-1]}) until the first request is answered",
        "The slowest rank of each way; phases summed up, of a fresh process that has imported torch; first round.",
    )
    builds = table(report, "ready", ["form", "builds"]).set_index("form")["builds"]
    notes = [
        f"{_s(ends[form].max())}, {builds[form]} C++ build{'s' if builds[form] != 1 else ''}"
        for form in order
    ]
    _bars(sheet, rows, stacked=True, beside=notes)
    return sheet.finish(report.label)


def _waterfall(report: Any, spans: pd.DataFrame, forms: list[str]) -> Figure:
    chosen = forms or ["cold" if "cold" in set(spans["form"]) else spans["form"].iloc[0]]
    mine = spans[spans["form"].isin(chosen)]
    rows = [
        (f"{form}, rank {rank}", lane)
        for form in chosen
        for rank, lane in mine[mine["form"] == form].groupby("rank", sort=True)
    ]
    sheet = Sheet()
    length = mine.assign(s=mine["to_s"] - mine["from_s"]).groupby("phase")["s"].sum()
    sheet.title(
        f"{length.idxmax()} is the largest part of it: {length.max() / length.sum():.0%} of the ranks' time",
        f"From a barrier to the answer to the first request, by torch's own clock; {', '.join(chosen)}.",
    )
    _bars(sheet, rows, stacked=False, beside=[_s(lane["to_s"].max()) for _, lane in rows])
    return sheet.finish(report.label)


def _bars(sheet: Sheet, rows: list[tuple[str, pd.DataFrame]], stacked: bool, beside: list[str]) -> None:
    """One bar a row: phases in their order of time, or summed up in one order."""
    phases = [name for name in LOOKS if any(name in set(lane["phase"]) for _, lane in rows)]
    sheet.legend([(name, patch(*LOOKS[name], width=0)) for name in phases])
    left = 0.35 + max(style.text_width(name, style.NORMAL) for name, _ in rows)
    right = 0.3 + max(style.text_width(text, style.SMALL + 0.5) for text in beside)
    ax = sheet.axes(left, sheet.width - left - right, ROW * len(rows))
    ax.set(ylim=(len(rows), 0))
    ax.set_yticks([i + 0.5 for i in range(len(rows))], [name for name, _ in rows])
    ax.tick_params(axis="y", length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    ax.set_xlabel("seconds", fontsize=style.SMALL)
    end = max(lane["to_s"].max() for _, lane in rows)
    ax.set_xlim(0, end * 1.01)
    for i, (name, lane) in enumerate(rows):
        summed = lane.assign(s=lane["to_s"] - lane["from_s"]).groupby("phase")["s"].sum()
        if stacked:
            at = 0.0
            for phase in [p for p in LOOKS if p in summed]:
                _block(ax, phase, at, i + 0.14, summed[phase])
                at += summed[phase]
        else:
            for span in lane.to_dict("records"):
                _block(ax, str(span["phase"]), span["from_s"], i + 0.14, span["to_s"] - span["from_s"])
        ax.annotate(
            beside[i], (1, i + 0.5), xycoords=("axes fraction", "data"), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=style.SMALL + 0.5, annotation_clip=False,
        )  # fmt: skip
        parts = ", ".join(f"{phase} {_s(summed[phase])}" for phase in LOOKS if phase in summed)
        sheet.say(f"{name}: {beside[i]}: {parts}")
    sheet.top += 0.5


def _block(ax: Axes, phase: str, x: float, y: float, width: float) -> None:
    colour, hatch = LOOKS.get(phase, ("#999999", None))
    look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
    ax.add_patch(Rectangle((x, y), width, 0.72, **look))


def _requests(report: Any, spans: pd.DataFrame, forms: list[str]) -> Figure:
    latency = table(report, "latency", ["form", "round", "request", "seconds"])
    each = latency[latency["round"] == latency["round"].min()]
    each = each.groupby(["form", "request"], sort=False)["seconds"].max().reset_index()
    known = list(dict.fromkeys(each["form"]))
    usual = [form for form in ("cold", "second process", "AOTInductor", "eager") if form in known]
    chosen = forms or usual or known[:4]
    sheet = Sheet()
    first = {
        form: each[(each["form"] == form) & (each["request"] == 1)]["seconds"].iloc[0] for form in chosen
    }
    later = {form: each[(each["form"] == form) & (each["request"] > 1)]["seconds"] for form in chosen}
    form = max(chosen, key=lambda name: first[name])
    times = first[form] / later[form].median()
    sheet.title(
        f"{form}: the first request takes {times:,.0f} times as long as the median of the others",
        "Seconds of each of the first requests, on logarithmic axes; the slowest rank's; first round.",
    )
    ax = sheet.axes(0.85, sheet.width - 3.3, 2.9)
    ends = []
    for i, name in enumerate(chosen):
        mine = each[each["form"] == name].sort_values("request")
        colour, mark = LINES[i % len(LINES)]
        look = {"color": colour, "marker": mark, "markersize": 3.2, "linewidth": 0.9, "alpha": 0.85}
        ax.plot(mine["request"], mine["seconds"], **look)
        p99, warm = mine["seconds"].quantile(0.99), later[name].quantile(0.99)
        ends.append((name, colour, mark, f"{name}: p99 {_s(p99)}, without the first {_s(warm)}"))
        sheet.say(f"{ends[-1][3]}; first {_s(first[name])}, median of the others {_s(later[name].median())}")
    ax.set(xscale="log", yscale="log")
    ax.set_xlabel("request", fontsize=style.SMALL)
    ax.set_ylabel("seconds", fontsize=style.SMALL)
    ax.grid(axis="y", color=style.FAINT)
    for i, (name, colour, mark, _) in enumerate(ends):
        y = 0.95 - i * 0.2
        mine = later[name]
        ax.plot([1.05], [y], marker=mark, color=colour, transform=ax.transAxes, clip_on=False, markersize=6)
        text = f"{name}\nfirst {_s(first[name])}, then {_s(mine.median())}"
        ax.text(1.08, y, text, transform=ax.transAxes, va="center", fontsize=style.SMALL, parse_math=False)
    sheet.top += 0.5
    return sheet.finish(report.label)


def _s(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.1f} s"
