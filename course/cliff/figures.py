"""Figures of lesson 04: the time of a forward over its breaks, and what breaks cost at several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.timing.verdicts import wider_interval
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import need

__all__ = ["interval", "over_breaks", "over_sizes"]

BLUE, ORANGE = "#0072B2", "#D55E00"


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' values and its interval, by the rule of `labkit.timing`.

    >>> interval([2.0] * 9)
    (2.0, 2.0, 2.0)
    """
    return float(np.median(values)), *wider_interval(values)


@styled
def over_breaks(
    milliseconds: Mapping[int, Sequence[float]],
    line: tuple[float, float],
    fitted: Sequence[int],
    label: str = "",
) -> Figure:
    """Draw the times of a forward over the breaks that it executes, with a line through some of them.

    Args:
        milliseconds: the times of each round, by breaks.
        line: slope and intercept, in milliseconds.
        fitted: the breaks whose times made the line; the others test it.
        label: the run label.

    Returns:
        The figure.
    """
    slope, intercept = line
    sheet = Sheet()
    sheet.title(
        f"A forward takes {1e3 * slope:.0f} us more for each of these breaks",
        "Dots: medians; bars: p10 to p90 of the rounds. The line is fitted to the blue dots; the orange one tests it.",
    )
    ax = sheet.axes(0.75, 8.6, 2.6)
    ends = np.array([0, max(milliseconds)])
    ax.plot(ends, intercept + slope * ends, color=style.QUIET, linewidth=1)
    for breaks, times in milliseconds.items():
        colour = BLUE if breaks in fitted else ORANGE
        ax.plot([breaks] * 2, np.quantile(times, [0.1, 0.9]), color=colour, linewidth=2)
        ax.plot(breaks, np.median(times), "o", color=colour)
        sheet.say(f"{breaks} breaks: {np.median(times):.3g} ms")
    ax.set(ylim=(0, None), xticks=list(milliseconds), xlabel="breaks executed in a forward", ylabel="ms")
    sheet.top += 0.5
    return sheet.finish(label)


@styled
def over_sizes(verdicts: pd.DataFrame, label: str = "") -> Figure:
    """Draw ratios of times with their intervals, for pairs of variants at several sizes.

    Args:
        verdicts: a table with size, pair, ratio, low and high, in the order of the figure.
        label: the run label.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.
    """
    verdicts = need(verdicts, ["size", "pair", "ratio", "low", "high"], "verdicts")
    sheet = Sheet()
    sheet.title(
        "A break matters where a forward is short",
        "Ratio of the times; bars: 99% interval of the median ratio. A bar that crosses 1 supports no conclusion.",
    )
    sizes = list(dict.fromkeys(verdicts["size"]))
    ax = sheet.axes(1.9, 7.5, 0.5 * len(sizes) + 0.2)
    ax.axvline(1, color=style.QUIET, linewidth=1)
    for i, (pair, rows) in enumerate(verdicts.groupby("pair", sort=False)):
        colour = (ORANGE, BLUE)[i % 2]
        for row in rows.itertuples():
            y = sizes.index(row.size) + (0.16 if i else -0.16)
            ax.plot([row.low, row.high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
            ax.plot(row.ratio, y, "o", color=colour, label=pair if row.Index == rows.index[0] else None)
            sheet.say(f"{row.size}, {pair}: {row.ratio:.2f}")
    ax.set(ylim=(len(sizes) - 0.5, -0.5), xlabel="time ratio")
    ax.set_yticks(range(len(sizes)), sizes)
    ax.legend(frameon=False, fontsize=style.SMALL)
    sheet.top += 0.5
    return sheet.finish(label)
