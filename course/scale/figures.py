"""What is modelled or simulated of worlds that are not here: a step and its parts, and the start of a job."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.ticker import PercentFormatter

from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import need

__all__ = ["curves", "starts"]

COMPUTE, TALK, TOTAL = style.KINDS["compute"][0], style.KINDS["collective"][0], style.INK
MEASURED = style.COLOURS[2]
HIGH, LEFT, GAP = 2.6, 0.8, 0.85


@styled
def curves(found: pd.DataFrame, label: str, measured: Mapping[int, float] | None = None) -> Figure:
    """Draw a model's step by the number of ranks.

    Args:
        found: a row for each world, ascending, with the world as index and the columns work, communication, step
            (seconds) and share (0 to 1).
        label: where the constants are from, with the word 'modelled'.
        measured: seconds of a step that was timed, by its number of ranks; what lies beyond is the formula alone.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.

    >>> rows = pd.DataFrame({"work": [2.0, 1.0], "communication": [0.5, 1.5]}, index=[2, 4])
    >>> rows = rows.assign(step=rows.sum(axis=1), share=rows["communication"] / rows.sum(axis=1))
    >>> curves(rows, "modelled").summary.split(". ")[0]
    'In the model a step is shortest on 2 ranks: more ranks add more communication than they save work'
    """
    need(found, ["work", "communication", "step", "share"], "curve")
    sheet, measured = Sheet(), dict(measured or {})
    least, half = found["step"].idxmin(), _half_at(found)
    sheet.title(_finding(found), _panels(half, max(measured, default=0)))
    wide = (sheet.width - LEFT - 0.3 - GAP) / 2
    ax, share = (sheet.axes(left, wide, HIGH, top=sheet.top) for left in (LEFT, LEFT + wide + GAP))
    sheet.top += HIGH + 0.5
    ax.set(xscale="log", yscale="log", xlabel="ranks (logarithmic)", ylabel="time of a step, ms")
    parts = (("work", "--", COMPUTE), ("communication", ":", TALK), ("step", "-", TOTAL))
    for part, line, colour in parts:
        # zero is not on a logarithmic axis
        shown = found.loc[found[part] > 0, part] * 1e3
        ax.plot(shown.index, shown, line, color=colour, linewidth=2)
    first, last = found.index[0], found.index[-1]
    share.set(
        xscale="log", ylim=(-0.02, 1.04), xlabel="ranks (logarithmic)", ylabel="communication, % of the step"
    )
    share.yaxis.set_major_formatter(PercentFormatter(1))
    share.plot(found.index, found["share"], color=TALK, linewidth=2)
    share.axhline(0.5, color=style.QUIET, linewidth=1, linestyle=":")
    ax.plot(least, 1e3 * found.loc[least, "step"], "o", color=TOTAL, markersize=7)  # the title names it
    if half:
        place = half, found.loc[half, "share"]
        share.plot(*place, "o", color=TALK, markersize=7)
        share.annotate(_ranks(half), place, xytext=(9, -9), textcoords="offset points", color=TALK)
    ends = [2**i for i in range(0, 21, 2) if first <= 2**i <= last]
    for one in (ax, share):
        one.minorticks_off()
        one.set_xticks(ends, [f"{n:,}" for n in ends])
        one.grid(color=style.FAINT, linewidth=0.7)
        if measured:
            limits = one.get_xlim()
            one.axvspan(limits[0], max(measured), color=style.QUIET, alpha=0.15, linewidth=0)
            one.set_xlim(limits)
    step = found["step"] * 1e3
    sheet.say(f"step: {step[first]:.3g} ms on {_ranks(first)}, {step[last]:.3g} ms on {last:,}")
    keys = [(f"{part}, modelled", style.line(colour, line)) for part, line, colour in parts]
    if measured:
        seconds = [1e3 * taken for taken in measured.values()]
        ax.plot([*measured], seconds, "X", color=MEASURED, markersize=9, markeredgecolor="white")
        sheet.say(*(f"measured on {_ranks(p)}: {1e3 * taken:.3g} ms" for p, taken in measured.items()))
        keys.append(("step, measured", style.line(MEASURED, "", "X")))
    sheet.legend(keys, left=LEFT)
    return sheet.finish(label)


@styled
def starts(found: pd.DataFrame, label: str, slowest: float | None = None) -> Figure:
    """Draw how long a job's start takes by the number of ranks: a colour for each policy.

    Args:
        found: the columns policy, ranks, and seconds until the last rank is ready: p10, 'ready s' (the median), p90.
        label: what was simulated from which measurement.
        slowest: the slowest measured compile, in seconds.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.

    >>> row = {"policy": "one", "ranks": 8, "p10": 1.0, "ready s": 2.0, "p90": 3.0}
    >>> starts(pd.DataFrame([row]), "simulated").summary.split(". ")[0]
    'The last of 8 ranks is ready after 2 s'
    """
    need(found, ["policy", "ranks", "p10", "ready s", "p90"], "starts")
    sheet, keys = Sheet(), []
    sheet.title(_first(found), "Lines: the median of the simulated starts. Bands: from p10 to p90.")
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.3, HIGH, top=sheet.top)
    sheet.top += HIGH + 0.5
    ax.set(xscale="log", xlabel="ranks (logarithmic)", ylabel="last rank ready after, s (simulated)")
    for number, (policy, rows) in enumerate(found.groupby("policy", sort=False), start=1):
        colour = style.COLOURS[number]
        ax.plot(rows["ranks"], rows["ready s"], color=colour, linewidth=2, marker="o", markersize=4)
        ax.fill_between(rows["ranks"], rows["p10"], rows["p90"], color=colour, alpha=0.15, linewidth=0)
        keys.append((str(policy), style.line(colour, "-")))
        last = rows.loc[rows["ranks"].idxmax()]
        sheet.say(f"{policy}: the last of {_ranks(last['ranks'])} is ready after {last['ready s']:.3g} s")
    if slowest is not None:
        ax.axhline(slowest, color=TOTAL, linewidth=1.5, linestyle=":")
        keys.append(("slowest measured compile", style.line(TOTAL, ":")))
    ends = sorted(found["ranks"].unique())
    ax.minorticks_off()
    ax.set_xticks(ends, [f"{n:,}" for n in ends])
    ax.set_ylim(bottom=0)
    ax.grid(color=style.FAINT, linewidth=0.7)
    sheet.legend(keys, left=LEFT)
    return sheet.finish(label)


def _ranks(number: float) -> str:
    return f"{int(number):,} rank{'' if number == 1 else 's'}"


def _half_at(found: pd.DataFrame) -> int | None:
    """The smallest world from which on communication is at least half of every step; None where there is none.

    >>> _half_at(pd.DataFrame({"share": [0.1, 0.4, 0.6, 0.9]}, index=[2, 3, 4, 5]))
    4
    """
    below = found.index[found["share"] < 0.5]
    above = found.index[found.index > max(below, default=0)]
    return int(min(above)) if len(above) else None


def _finding(found: pd.DataFrame) -> str:
    """Where the step is shortest, and what more ranks do.

    >>> _finding(pd.DataFrame({"step": [3.0, 2.0]}, index=[1, 4]))
    'In the model a step is shortest on 4 ranks, the most in this figure'
    """
    least = found["step"].idxmin()
    more = ", the most in this figure"
    if least < found.index[-1]:
        more = ": more ranks add more communication than they save work"
    return f"In the model a step is shortest on {_ranks(least)}{more}"


def _panels(half: int | None, measured: int) -> str:
    """What the two panels and the grey part show."""
    part = f"at least half from {_ranks(half)} on" if half else "always less than half"
    said = "Left: the step and its two parts; the dot is the shortest."
    said += f" Right: communication's part of the step, {part}."
    if measured:
        said += f" Grey: up to {_ranks(measured)}, where steps were timed; beyond, the formula alone."
    return said


def _first(found: pd.DataFrame) -> str:
    """Under which policy the largest world is ready first; under none where the bands overlap.

    >>> rows = pd.DataFrame([("one", 8, 1.9, 2.0, 2.1), ("all", 8, 2.8, 3.0, 3.2)])
    >>> rows.columns = ["policy", "ranks", "p10", "ready s", "p90"]
    >>> _first(rows)
    'The last of 8 ranks is ready soonest under the policy "one"'
    >>> _first(rows.assign(p90=2.9))
    'Not enough to tell which policy is sooner on 8 ranks: 2 to 3 s, and their bands overlap'
    """
    rows = found[found["ranks"] == found["ranks"].max()].sort_values("ready s")
    ranks, first = _ranks(rows["ranks"].max()), rows.iloc[0]
    if len(rows) == 1:
        return f"The last of {ranks} is ready after {first['ready s']:.3g} s"
    if first["p90"] < rows["p10"].iloc[1:].min():
        return f'The last of {ranks} is ready soonest under the policy "{first["policy"]}"'
    span = f"{first['ready s']:.3g} to {rows['ready s'].iloc[-1]:.3g} s"
    return f"Not enough to tell which policy is sooner on {ranks}: {span}, and their bands overlap"
