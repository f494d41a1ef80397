"""DTensor against explicit collectives, drawn: time by route and size, eager host time, single operations."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from labkit.lessons.shared.keys import mark, patch
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import table

__all__ = ["WHICH", "figure"]

WHICH = ("time", "spent", "parts")
# a route's colour and mark; eager is hollow and compiled is filled
ROUTES = {
    "a": ("#000000", "o", "explicit, in place"),
    "b": ("#0072B2", "s", "explicit, functional"),
    "c": ("#D55E00", "^", "DTensor"),
    "d": ("#009E73", "D", "parallelize_module"),
}
# what an eager forward's host time is spent on: colour, hatch, words
SPENT = {
    "program": ("#BBBBBB", "", "the program itself"),
    "sums": ("#0072B2", "", "functional all-reduces"),
    "results": ("#56B4E9", "....", "their asynchronous results"),
    "dispatch": ("#D55E00", "", "operations as DTensors"),
    "wrap": ("#F0E442", "////", "from_local, to_local"),
    "redistribute": ("#CC79A7", "\\\\\\\\", "redistribute, without its all-reduce"),
}
LEFT, ROW = 2.15, 0.26


@styled
def figure(report: Any, which: str = "time", evidence: str | None = None) -> Figure:
    """Draw a report of `labkit.lessons.dtensor.experiment`: 'time', 'spent' or 'parts'.

    evidence: for 'time', whose times: the ranks' (default) or 'host only'. Raises ValueError for another figure or
    evidence, or when the report lacks a table.
    """
    if which not in WHICH:
        raise ValueError(f"no figure {which!r} of this report: there is {', '.join(WHICH)}")
    if which == "time":
        return _time(report, evidence or report.label)
    return (_spent if which == "spent" else _parts)(report)


def _time(report: Any, evidence: str) -> Figure:
    samples = table(report, "samples", ["evidence", "kind", "size", "way", "rank", "round", "seconds"])
    known = list(pd.unique(samples["evidence"]))
    if evidence not in known:
        raise ValueError(f"no times of {evidence!r}: there is {', '.join(known)}")
    mine = samples[samples["evidence"] == evidence]
    worst = mine.groupby(["kind", "size", "way", "round"], sort=False)["seconds"].max().mul(1e3).reset_index()
    cases = list(dict.fromkeys(zip(worst["kind"], worst["size"], strict=True)))
    ways = [
        f"{r} {mode}" for mode in ("eager", "compiled") for r in ROUTES if f"{r} {mode}" in set(worst["way"])
    ]
    sheet = Sheet()
    verdicts = {(v["kind"], v["size"], v["a"], v["b"]): v
                for v in report.tables["verdicts"].to_dict("records") if v["evidence"] == evidence}  # fmt: skip
    sheet.title(
        _finding(verdicts, cases),
        "One forward, the slowest rank's; dots are medians, bars reach from p10 to p90; each panel has its own scale.",
    )
    gap = 0.25
    wide = (sheet.width - LEFT - 0.25 - gap * (len(cases) - 1)) / len(cases)
    top, height = sheet.top + 0.25, ROW * len(ways)
    for i, (kind, size) in enumerate(cases):
        x = LEFT + i * (wide + gap)
        sheet.text(f"{kind}, {size}", left=x, top=sheet.top, fontweight="bold")
        ax = sheet.axes(x, wide, height, top=top)
        ax.set(ylim=(len(ways) - 0.5, -0.5))
        ax.set_label(f"{kind} {size}")
        part, said, most = worst[(worst["kind"] == kind) & (worst["size"] == size)], [], 0.0
        for y, way in enumerate(ways):
            taken = part[part["way"] == way]["seconds"]
            if taken.empty:
                continue
            low, middle, high = (float(taken.quantile(q)) for q in (0.1, 0.5, 0.9))
            colour, marker, _ = ROUTES[way[0]]
            ax.plot([low, high], [y, y], color=colour, linewidth=3, alpha=0.35, solid_capstyle="butt")
            filled = colour if way.endswith("compiled") else "white"
            look = {
                "color": colour,
                "markerfacecolor": filled,
                "markersize": 6,
                "gid": f"{kind} {size} {way}",
            }
            ax.plot(middle, y, marker, **look)
            said.append(f"{way} {middle:.3g}")
            most = max(most, high)
        ax.set_xlim(0, most * 1.08)
        ax.axhline(3.5, color=style.FAINT, linewidth=1)
        ax.set_yticks(range(len(ways)), ["" if i else f"{w.split()[0]} {ROUTES[w[0]][2]}" for w in ways])
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
        ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
        ax.set_xlabel("ms a forward", labelpad=2)
        sheet.say(f"{kind}, {size}, ms: {', '.join(said)}")
    sheet.top = top + height + 0.45
    grey = "#666666"
    keys = [("eager", mark("o", grey, 6, markerfacecolor="white")), ("compiled", mark("o", grey, 6))]
    sheet.legend(keys, left=LEFT)
    return sheet.finish(evidence)


def _finding(verdicts: dict[Any, Any], cases: list[tuple[str, str]]) -> str:
    """What the verdicts come to over all cases: the smallest and the largest ratio that could be told."""
    said = []
    for way, against in (("c eager", "a eager"), ("c compiled", "b compiled")):
        found = [verdicts[key] for case in cases if (key := (*case, way, against)) in verdicts]
        told = [one["ratio"] for one in found if one["outcome"] != "cannot tell"]
        if not found:
            continue
        mode = way.split()[1]
        words = "cannot tell from explicit"
        if told:
            words = f"{min(told):.2g} to {max(told):.2g} times the time of explicit"
            words += f" (told in {len(told)} of {len(found)})" if len(told) < len(found) else ""
        said.append(f"DTensor {mode}: {words}")
    return "; ".join(said)


def _spent(report: Any) -> Figure:
    found = table(report, "spent", ["kind", "size", "route", *SPENT])
    cases = list(dict.fromkeys(zip(found["kind"], found["size"], strict=True)))
    kind, size = cases[-1]
    mine = found[(found["kind"] == kind) & (found["size"] == size)].set_index("route")
    sheet = Sheet()
    c = mine.loc["c"]
    extra = float(c[["dispatch", "wrap", "redistribute"]].sum())
    sheet.title(
        f"Of the {extra:.3g} ms that eager DTensor adds, {c['dispatch'] / extra:.0%} stand around its operations",
        f"Host time of one eager forward ({kind}, {size}), no communication; medians, with timers on.",
    )
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.9, 0.36 * len(mine))
    ax.set(ylim=(len(mine) - 0.5, -0.5))
    ax.set_label("spent")
    for y, (route, row) in enumerate(mine.iterrows()):
        at = 0.0
        for name, (colour, hatch, _) in SPENT.items():
            width = max(float(row[name]), 0.0)
            look = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "linewidth": 0.5}
            ax.add_patch(Rectangle((at, y - 0.36), width, 0.72, **look))
            at += width
        ax.annotate(
            f"{at:.3g} ms", (at, y), (5, 0), textcoords="offset points", va="center", fontsize=style.SMALL
        )
        sheet.say(f"{route}: " + ", ".join(f"{SPENT[n][2]} {row[n]:.2g} ms" for n in SPENT if row[n]))
    totals = mine[list(SPENT)].clip(lower=0).sum(axis=1)
    ax.set_xlim(0, float(totals.max()) * 1.12)
    ax.set_yticks(range(len(mine)), [f"{route} {ROUTES[route][2]}" for route in mine.index])
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.set_xlabel("ms a forward", labelpad=2)
    sheet.top += 0.45
    sheet.legend([(words, patch(colour, hatch)) for colour, hatch, words in SPENT.values()], left=0.3)
    return sheet.finish("host only")


def _parts(report: Any) -> Figure:
    found = table(report, "parts", ["part", "round", "seconds"])
    median = found.groupby("part", sort=False)["seconds"].median() * 1e6
    spread = found.groupby("part")["seconds"].quantile([0.1, 0.9]).mul(1e6)
    sheet = Sheet()
    plain, cached, first = (median[f"operation, {w}"] for w in ("local", "rule cached", "first of its kind"))
    sheet.title(
        f"One addition: {plain:.3g} us plain, {cached:.3g} us as a DTensor, {first / 1e3:.3g} ms the first time",
        "Host time of single calls on small tensors, no communication; dots are medians, bars reach from p10 to p90.",
    )
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.9, ROW * len(median))
    ax.set(ylim=(len(median) - 0.5, -0.5), xscale="log")
    ax.set_label("parts")
    for y, (name, value) in enumerate(median.items()):
        ends = [float(spread[name, q]) for q in (0.1, 0.9)]
        colour = "#D55E00" if "rule" in name or "first" in name else "#0072B2"
        ax.plot(ends, [y, y], color=colour, linewidth=3, alpha=0.35)
        ax.plot(value, y, "o", color=colour, markersize=6)
        ax.annotate(f"{value:,.3g} us" if value < 1000 else f"{value / 1e3:.2g} ms", (ends[1], y), (6, 0),
                    textcoords="offset points", va="center", fontsize=style.SMALL)  # fmt: skip
        sheet.say(f"{name}: {value:.3g} us")
    ax.set_yticks(range(len(median)), list(median.index))
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    ax.set_xlabel("us a call, logarithmic", labelpad=2)
    sheet.top += 0.45
    return sheet.finish("host only")
