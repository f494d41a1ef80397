"""The eager trap's report as a figure: the ratio functional over in place against the size of a call."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.views import style
from labkit.views.style import Figure, Sheet, by_evidence, empty_figure, mark, styled
from labkit.views.tables import table

__all__ = ["figure"]

MARKS = {"all_reduce": ("#000000", "o"), "all_gather": ("#0072B2", "s"), "reduce_scatter": ("#D55E00", "^")}
HEIGHT, GAP, LEFT = 2.6, 0.66, 0.95  # inches: of a panel, between two, and before the first


@styled
def figure(report: Any, which: str = "sizes", title: str | None = None, label: str | None = None) -> Figure:
    """Draw the ratio of times, functional over in place, until the result is there, against the size of a call.

    Args:
        report: of the eager trap.
        which: 'sizes', the only figure.
        title: instead of the one that counts the slower calls.
        label: instead of the kinds of evidence, or where and when it was recorded.

    Returns:
        A panel for each kind of evidence, a curve for each collective, bars for the 99 % intervals.

    Raises:
        ValueError: the figure is unknown, or the report lacks the table or a column.
    """
    if which != "sizes":
        raise ValueError(f"no figure {which!r} of this report: there is sizes")
    columns = ["evidence", "collective", "bytes", "stage", "outcome", "ratio", "low", "high"]
    shown = table(report, "verdicts", columns)
    shown = shown[shown["stage"] == "done"] if len(shown) else shown
    if label is None:
        recorded = report.label.startswith("recorded") or shown.empty
        label = report.label if recorded else ", ".join(map(str, pd.unique(shown["evidence"])))
    sheet = Sheet()
    if shown.empty:
        return empty_figure(sheet, "Nothing was compared", label, title)
    slower = int((shown["outcome"] == "slower").sum())
    sheet.title(
        title or f"Functional in eager is slower in {slower} of {len(shown)} comparisons",
        "Until the result is there. Bars are 99 % intervals; one that contains 1 supports no conclusion.",
    )
    found = by_evidence(shown)
    wide = (sheet.width - LEFT - 0.25 - GAP * (len(found) - 1)) / len(found)
    finite = shown[["ratio", "low", "high"]].replace([float("inf"), -float("inf")], float("nan"))
    ends = (min(0.5, float(finite.min().min()) * 0.9), max(2.0, float(finite.max().max()) * 1.2))
    ends = (max(ends[0], 0.1), min(ends[1], 10_000.0))
    top = sheet.top + 0.25
    for i, (name, part) in enumerate(found):
        x = LEFT + i * (wide + GAP)
        sheet.text(name, left=x, top=sheet.top, fontweight="bold")
        ax = sheet.axes(x, wide, HEIGHT, top=top)
        ax.set(xscale="log", yscale="log", ylim=ends)
        ax.set_label(f"sizes {name}")
        ax.axhline(1, color=style.QUIET, linewidth=1, linestyle="--")
        for collective, mine in part.groupby("collective", sort=False):
            mine = mine.sort_values("bytes")
            colour, marker = MARKS.get(str(collective), ("#009E73", "D"))
            low, high = mine["low"].clip(*ends), mine["high"].clip(*ends)
            ax.vlines(mine["bytes"], low, high, color=colour, alpha=0.35)
            ax.plot(mine["bytes"], mine["ratio"], marker=marker, color=colour, markersize=5, linewidth=1.2)
            said = ", ".join(f"{size(r.bytes)} {r.ratio:.2f} {r.outcome}" for r in mine.itertuples())
            sheet.say(f"{name}, {collective}: {said}")
        sizes = sorted(set(part["bytes"]))
        ax.minorticks_off()
        ax.set_xticks(sizes[::2], [size(n) for n in sizes[::2]])
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 100, 1000, 10_000) if ends[0] <= t <= ends[1]]
        ax.set_yticks(ticks, [f"{t:g}×" for t in ticks])
        ax.grid(color=style.FAINT, linewidth=0.7)
        ax.set_xlabel("size, bytes")
        if i == 0:
            ax.set_ylabel("functional / in place, time")
    sheet.top = top + HEIGHT + 0.5
    looks = {str(name): MARKS.get(name, ("#009E73", "D")) for name in pd.unique(shown["collective"])}
    sheet.legend([(name, mark(shape, colour, 6)) for name, (colour, shape) in looks.items()], left=LEFT)
    return sheet.finish(
        label, "Sizes are of the larger tensor of a call: what is reduced, or gathered and scattered, whole."
    )


def size(nbytes: float) -> str:
    """A size as people write it.

    >>> size(4), size(16384), size(64 << 20)
    ('4 B', '16 KB', '64 MB')
    """
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes:g} B"
