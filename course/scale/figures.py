"""The cost model drawn: a step and its two parts by the number of ranks, the communication's share, measured steps."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import PercentFormatter

from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import need

__all__ = ["curves"]

COMPUTE, TALK, TOTAL = style.KINDS["compute"][0], style.KINDS["collective"][0], style.INK
HIGH, LEFT, GAP = 2.6, 0.8, 0.85
MEASURED = "o"


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
    wide = (sheet.width - LEFT - 0.3 - GAP) / 2
    ax, share = (sheet.axes(left, wide, HIGH, top=sheet.top) for left in (LEFT, LEFT + wide + GAP))
    sheet.top += HIGH + 0.5
    ax.set(xscale="log", yscale="log", xlabel="ranks", ylabel="a step, ms (modelled)")
    parts = (("work", "--", COMPUTE), ("communication", ":", TALK), ("step", "-", TOTAL))
    for part, line, colour in parts:
        # zero is not on a logarithmic axis
        shown = found.loc[found[part] > 0, part] * 1e3
        ax.plot(shown.index, shown, line, color=colour, linewidth=2)
    first, last = found.index[0], found.index[-1]
    if measured is not None:
        ax.plot(first, measured * 1e3, MEASURED, color=TOTAL, markersize=6)
        sheet.say(f"step, {first} ranks measured: {measured * 1e3:.3g} ms")
    share.set(xscale="log", ylim=(-0.02, 1.04), xlabel="ranks", ylabel="communication's share")
    share.yaxis.set_major_formatter(PercentFormatter(1))
    share.plot(found.index, found["share"], color=TALK, linewidth=2)
    share.axhline(0.5, color=style.QUIET, linewidth=1, linestyle=":")
    ends = [2**i for i in range(0, 21, 2) if first <= 2**i <= last]
    for one in (ax, share):
        one.minorticks_off()
        one.set_xticks(ends, [f"{n:,}" for n in ends])
        one.grid(color=style.FAINT, linewidth=0.7)
    step = found["step"] * 1e3
    sheet.say(f"step: {step[first]:.3g} ms on {first:,} ranks, {step[last]:.3g} ms on {last:,}")
    keys = [(part, style.line(colour, line)) for part, line, colour in parts]
    sheet.legend(
        keys if measured is None else [*keys, ("measured", style.line(TOTAL, "", MEASURED))], left=LEFT
    )
    return sheet.finish(label)


def _half_at(found: pd.DataFrame) -> int | None:
    """The smallest world from which on communication is at least half of every step; None where there is none.

    >>> _half_at(pd.DataFrame({"share": [0.1, 0.4, 0.6, 0.9]}, index=[2, 3, 4, 5]))
    4
    """
    below = found.index[found["share"] < 0.5]
    above = found.index[found.index > max(below, default=0)]
    return int(min(above)) if len(above) else None


def _finding(found: pd.DataFrame) -> str:
    half = _half_at(found)
    tail = f"communication is half of it from {half:,} on" if half else "communication is never half of it"
    return f"The shortest step is on {found['step'].idxmin():,} ranks; {tail}"
