"""What is modelled or simulated of worlds that are not here: a step and its parts, and the start of a job."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import PercentFormatter

from labkit.views import style
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import need

__all__ = ["curves", "starts"]

COMPUTE, TALK, TOTAL = style.KINDS["compute"][0], style.KINDS["collective"][0], style.INK
HIGH, LEFT, GAP = 2.6, 0.8, 0.85


@styled
def curves(found: pd.DataFrame, label: str, measured: int = 0) -> Figure:
    """Draw a model's step by the number of ranks.

    Args:
        found: a row for each world, ascending, with the world as index and the columns work, communication, step
            (seconds) and share (0 to 1).
        label: where the constants are from, with the word 'modelled'.
        measured: the most ranks that a constant was measured on; what lies beyond is the formula alone.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.

    >>> rows = pd.DataFrame({"work": [2.0, 1.0], "communication": [0.5, 1.5]}, index=[2, 4])
    >>> rows = rows.assign(step=rows.sum(axis=1), share=rows["communication"] / rows.sum(axis=1))
    >>> curves(rows, "modelled").summary.split(". ")[0]
    'The step is shortest on 2 ranks: more ranks add more communication than they save work'
    """
    need(found, ["work", "communication", "step", "share"], "curve")
    sheet = Sheet()
    least, half = found["step"].idxmin(), _half_at(found)
    sheet.title(_finding(found), _panels(half, measured))
    wide = (sheet.width - LEFT - 0.3 - GAP) / 2
    ax, share = (sheet.axes(left, wide, HIGH, top=sheet.top) for left in (LEFT, LEFT + wide + GAP))
    sheet.top += HIGH + 0.5
    ax.set(xscale="log", yscale="log", xlabel="ranks (logarithmic)", ylabel="time of a step, ms (modelled)")
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
    marks = [(ax, least, 1e3 * found.loc[least, "step"], TOTAL, (0, 9), "center")]
    marks += [(share, half, found.loc[half, "share"], TALK, (9, -9), "left")] if half else []
    for one, place, height, colour, beside, where in marks:
        one.plot(place, height, "o", color=colour, markersize=7)
        one.annotate(
            _ranks(place), (place, height), xytext=beside, textcoords="offset points", ha=where, color=colour
        )
    ends = [2**i for i in range(0, 21, 2) if first <= 2**i <= last]
    for one in (ax, share):
        one.minorticks_off()
        one.set_xticks(ends, [f"{n:,}" for n in ends])
        one.grid(color=style.FAINT, linewidth=0.7)
        if measured:
            limits = one.get_xlim()
            one.axvspan(limits[0], measured, color=style.QUIET, alpha=0.15, linewidth=0)
            one.set_xlim(limits)
    step = found["step"] * 1e3
    sheet.say(f"step: {step[first]:.3g} ms on {_ranks(first)}, {step[last]:.3g} ms on {last:,}")
    sheet.legend([(part, style.line(colour, line)) for part, line, colour in parts], left=LEFT)
    return sheet.finish(label)


@styled
def starts(found: pd.DataFrame, label: str) -> Figure:
    """Draw how long a job's start takes by the number of ranks: a colour for each policy, a dash for how it was drawn.

    Args:
        found: the columns policy ('policy, how it was drawn'), ranks, and seconds until the last rank is ready:
            p10, 'ready s' (the median), p90.
        label: what was simulated from which measurement.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.

    >>> row = {"policy": "one", "ranks": 8, "p10": 1.0, "ready s": 2.0, "p90": 3.0}
    >>> starts(pd.DataFrame([row]), "simulated").summary.split(". ")[0]
    'The last of 8 ranks is ready after 2 s'
    """
    need(found, ["policy", "ranks", "p10", "ready s", "p90"], "starts")
    sheet = Sheet()
    # else the lines would lie on each other
    from_zero = found["p10"].min() < 0.5 * found["p90"].max()
    sheet.title(
        _first(found),
        "Lines: the median of the simulated starts. Bands: from p10 to p90."
        + ("" if from_zero else " The time axis does not begin at 0."),
    )
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.3, HIGH, top=sheet.top)
    sheet.top += HIGH + 0.5
    ax.set(xscale="log", xlabel="ranks (logarithmic)", ylabel="last rank ready after, s (simulated)")
    keys = []
    kinds, drawn = ([*dict.fromkeys(found["policy"].str.partition(", ")[part])] for part in (0, 2))
    for policy, rows in found.groupby("policy", sort=False):
        kind, _, how = str(policy).partition(", ")
        colour, dashes = style.COLOURS[1 + kinds.index(kind)], ("-", "--", ":")[drawn.index(how) % 3]
        ax.plot(rows["ranks"], rows["ready s"], dashes, color=colour, linewidth=2, marker="o", markersize=4)
        ax.fill_between(rows["ranks"], rows["p10"], rows["p90"], color=colour, alpha=0.12, linewidth=0)
        keys.append((str(policy), style.line(colour, dashes)))
        last = rows.loc[rows["ranks"].idxmax()]
        sheet.say(f"{policy}: the last of {_ranks(last['ranks'])} is ready after {last['ready s']:.3g} s")
    ends = sorted(found["ranks"].unique())
    ax.minorticks_off()
    ax.set_xticks(ends, [f"{n:,}" for n in ends])
    if from_zero:
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
    'The step is shortest on 4 ranks, the most in this figure'
    """
    least = found["step"].idxmin()
    more = ", the most in this figure"
    if least < found.index[-1]:
        more = ": more ranks add more communication than they save work"
    return f"The step is shortest on {_ranks(least)}{more}"


def _panels(half: int | None, measured: int) -> str:
    """What the two panels and the grey part show."""
    part = f"at least half from {_ranks(half)} on" if half else "always less than half"
    said = f"Left: the step and its two parts. Right: communication's part of the step, {part}."
    if measured:
        said += f" Grey: up to {_ranks(measured)}, where constants were measured; beyond, the formula alone."
    return said


def _first(found: pd.DataFrame) -> str:
    """Under which policy the largest world is ready first, and whether every way of drawing says so.

    >>> rows = [("one, even", 8, 2.0), ("all, even", 8, 3.0), ("one, long tail", 8, 5.0), ("all, long tail", 8, 4.0)]
    >>> rows = pd.DataFrame(rows, columns=["policy", "ranks", "ready s"])
    >>> _first(rows[:2])
    'The last of 8 ranks is ready soonest under the policy "one"'
    >>> _first(rows)
    'Which policy starts 8 ranks sooner depends on the assumed distribution of the compile seconds'
    """
    rows = found[found["ranks"] == found["ranks"].max()]
    parts = rows["policy"].str.partition(", ")
    kinds, drawn = parts[0], parts[2]
    firsts = {frozenset(kinds[one.index[one == one.min()]]) for _, one in rows["ready s"].groupby(drawn)}
    ranks = _ranks(rows["ranks"].max())
    if len(firsts) > 1:
        return (
            f"Which policy starts {ranks} sooner depends on the assumed distribution of the compile seconds"
        )
    (first,) = firsts
    if len(first) < kinds.nunique():
        names = " or ".join(f'"{one}"' for one in sorted(first))
        return f"The last of {ranks} is ready soonest under the policy {names}"
    least, longest = (f"{rows['ready s'].agg(end):.3g}" for end in ("min", "max"))
    return f"The last of {ranks} is ready after {least if least == longest else f'{least} to {longest}'} s"
