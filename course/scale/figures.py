"""The cost model drawn: a step and its two parts by the number of ranks, the communication's share, measured steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table

__all__ = ["curves", "figure", "half_at"]

COMPUTE, TALK, TOTAL = style.KINDS["compute"][0], style.KINDS["collective"][0], style.INK
HIGH, LEFT, GAP = 2.6, 0.8, 0.85
MARKS = {False: ("o", "measured"), True: ("X", "measured, ranks share cores")}
Points = dict[
    int, tuple[float, float, float, bool]
]  # by world: median, p10, p90 in seconds; whether cores are shared


@styled
def curves(found: pd.DataFrame, label: str, measured: float | None = None) -> Figure:
    """Draw a model's step by the number of ranks.

    Args:
        found: a row for each world, ascending, with the world as index and the columns work, communication, step
            (seconds) and share (0 to 1).
        label: where the constants are from, with the word 'modelled'.
        measured: seconds of a step on the first world, drawn as a point.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.

    >>> rows = pd.DataFrame({"work": [2.0, 1.0], "communication": [0.5, 1.5]}, index=[2, 4])
    >>> rows = rows.assign(step=rows.sum(axis=1), share=rows["communication"] / rows.sum(axis=1))
    >>> curves(rows, "modelled").summary.split(". ")[0]
    'The shortest step is on 2 ranks; communication is half of it from 4 on'
    """
    need(found, ["work", "communication", "step", "share"], "curve")
    sheet = Sheet()
    sheet.title(_finding(found), "Left: one step and its two parts. Right: the communication's share of it.")
    points: Points = {} if measured is None else {int(found.index[0]): (measured,) * 3 + (False,)}
    _row(sheet, "", found, points)
    return sheet.finish(label)


@styled
def figure(report: Any) -> Figure:
    """Draw the model of a saved report, a row for each link, with the measured steps.

    Raises:
        ValueError: the report lacks a table.
    """
    model = table(
        report, "model", ["link", "world_size", "compute_ms", "communication_ms", "step_ms", "share"]
    )
    seen = table(report, "steps", ["link", "world_size", "ms", "p10", "p90"])
    units = report.provenance.get("units", 1)
    sheet = Sheet()
    label = f"modelled, {report.label}" if report.label.startswith("recorded") else "modelled"
    if model.empty:
        return empty_figure(sheet, "The model has no curve", label)
    columns = {"compute_ms": "work", "communication_ms": "communication", "step_ms": "step"}
    found = {}
    for name, mine in model.rename(columns=columns).groupby("link", sort=False):
        mine = mine.set_index("world_size").sort_index()
        found[str(name)] = mine.assign(**{part: mine[part] / 1e3 for part in columns.values()})
    first, curve = next(iter(found.items()))
    sheet.title(
        f"{_finding(curve)} ({first})",
        "Left: one step and its parts; points are measured, median and p10 to p90. Right: the communication's share.",
    )
    for name, curve in found.items():
        rows = seen[seen["link"] == name].itertuples()
        points = {r.world_size: (r.ms / 1e3, r.p10 / 1e3, r.p90 / 1e3, r.world_size > units) for r in rows}
        _row(sheet, name, curve, points)
    return sheet.finish(label)


def half_at(found: pd.DataFrame) -> int | None:
    """The smallest world from which on communication is at least half of every step; None where there is none.

    >>> half_at(pd.DataFrame({"share": [0.1, 0.4, 0.6, 0.9]}, index=[2, 3, 4, 5]))
    4
    """
    below = found.index[found["share"] < 0.5]
    above = found.index[found.index > max(below, default=0)]
    return int(min(above)) if len(above) else None


def _finding(found: pd.DataFrame) -> str:
    half = half_at(found)
    tail = f"communication is half of it from {half:,} on" if half else "communication is never half of it"
    return f"The shortest step is on {found['step'].idxmin():,} ranks; {tail}"


def _row(sheet: Sheet, name: str, found: pd.DataFrame, points: Points) -> None:
    """A step in milliseconds on the left, the share on the right; zero is not on a logarithmic axis."""
    wide = (sheet.width - LEFT - 0.3 - GAP) / 2
    if name:
        sheet.text(name, left=LEFT, top=sheet.top, fontweight="bold")
        sheet.top += 0.25
    top = sheet.top
    ax = sheet.axes(LEFT, wide, HIGH, top=top)
    ax.set(xscale="log", yscale="log", xlabel="ranks", ylabel="a step, ms (modelled)")
    ax.set_label(f"step {name}")
    parts = (("work", "--", COMPUTE), ("communication", ":", TALK), ("step", "-", TOTAL))
    for part, line, colour in parts:
        shown = found.loc[found[part] > 0, part] * 1e3
        ax.plot(shown.index, shown, line, color=colour, linewidth=2)
    for world, (middle, low, high, shared) in points.items():
        ms, bars = middle * 1e3, [[(middle - low) * 1e3], [(high - middle) * 1e3]]
        ax.errorbar(world, ms, yerr=bars, fmt=MARKS[shared][0], color=TOTAL, markersize=6, capsize=3)
        sheet.say(f"{name or 'step'}, {world} ranks {MARKS[shared][1]}: {ms:.3g} ms")
    right = sheet.axes(LEFT + wide + GAP, wide, HIGH, top=top)
    right.set(xscale="log", ylim=(-0.02, 1.04), xlabel="ranks", ylabel="communication's share")
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.plot(found.index, found["share"], color=TALK, linewidth=2)
    right.axhline(0.5, color=style.QUIET, linewidth=1, linestyle=":")
    ends = [2**i for i in range(0, 21, 2) if found.index[0] <= 2**i <= found.index[-1]]
    for one in (ax, right):
        one.minorticks_off()
        one.set_xticks(ends, [f"{n:,}" for n in ends])
        one.grid(color=style.FAINT, linewidth=0.7)
    first, last = found.index[0], found.index[-1]
    step = found["step"] * 1e3
    sheet.say(f"{name or 'step'}: {step[first]:.3g} ms on {first:,} ranks, {step[last]:.3g} ms on {last:,}")
    sheet.top = top + HIGH + 0.5
    keys = [(part, _key(colour, line)) for part, line, colour in parts]
    marks = [
        (MARKS[shared][1], _key(TOTAL, "", MARKS[shared][0]))
        for shared in sorted({p[3] for p in points.values()})
    ]
    sheet.legend([*keys, *marks], left=LEFT)


def _key(colour: str, line: str, marker: str = "") -> Callable[[Axes, float, float], Any]:
    """A legend key: a piece of the line, with its marker in the middle."""
    return lambda ax, x, y: ax.plot(
        [x, x + 0.1, x + 0.2], [y + 0.06] * 3, line or "none", color=colour, linewidth=1.8, marker=marker or None,
        markevery=[1], markersize=5.5,
    )  # fmt: skip
