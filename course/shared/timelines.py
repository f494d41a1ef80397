"""Timelines of ranks that end differently: what each rank did, what it did not finish, and how its part ended."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.style import KINDS, Figure, Sheet, patch, styled
from labkit.views.tables import need

__all__ = ["ENDS", "NOTES", "timelines"]

LANE, LEFT, ABOVE = 0.34, 0.75, 0.19  # inches; ABOVE: of the names over short bars
NOTES = ["drill", "rank", "kind", "what", "begin", "end"]
ENDS = ["drill", "rank", "at", "said"]


@styled
def timelines(
    notes: pd.DataFrame,
    ends: pd.DataFrame,
    label: str = "",
    title: str = "",
    on_purpose: str = "",
) -> Figure:
    """Draw what each rank did over time, a panel for each drill and a lane for each rank.

    Args:
        notes: Bars, with the columns drill, rank, kind (of `style.KINDS`), what, begin and end in seconds since the
            drill began. A bar without an end is hatched and reaches to where the drill's call ended. The name of a
            bar stands in it, or above it where it is too short for its name.
        ends: drill, rank, at (seconds), said (how this rank's part ended).
        label: The run label.
        title: The finding.
        on_purpose: What is done on purpose in the drills, as a sentence below the title.

    Returns:
        The figure.

    Raises:
        ValueError: If a column is missing.
    """
    notes, ends = need(notes, NOTES, "notes"), need(ends, ENDS, "ends")
    sheet = Sheet()
    hatched = "Hatched: not finished when the call ended." if notes["end"].isna().any() else ""
    sheet.title(title, " ".join(filter(None, [hatched, on_purpose])))
    used = [kind for kind in KINDS if kind in set(notes["kind"])]
    sheet.legend([(KINDS[kind][1], patch(KINDS[kind][0])) for kind in used])
    limit = max(ends["at"].max(), 0.1) * 1.02
    wide = sheet.width - LEFT - 0.35 - max(style.text_width(said, style.SMALL) for said in ends["said"])
    for drill, rows in ends.groupby("drill", sort=False):
        if drill:
            sheet.top += 0.05
            sheet.text(str(drill), fontweight="bold", fontsize=10.5)
            sheet.top += 0.03
        bars = {
            rank: _placed(notes[(notes["drill"] == drill) & (notes["rank"] == rank)], at, limit, limit / wide)
            for rank, at in zip(rows["rank"], rows["at"], strict=True)
        }
        lane = LANE + 0.06 + ABOVE * any("above" in bar for mine in bars.values() for bar in mine)
        ax = sheet.axes(LEFT, wide, lane * len(rows))
        ax.set(xlim=(0, limit), ylim=(lane * len(rows), 0))  # inches from the top
        ax.spines["left"].set_visible(False)
        middles = [lane * (i + 1) - 0.03 - LANE / 2 for i in range(len(rows))]
        ax.set_yticks(middles, [f"rank {rank}" for rank in rows["rank"]])
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
        for middle, end in zip(middles, rows.to_dict("records"), strict=True):
            mine = bars[end["rank"]]
            for bar in mine:
                _bar(ax, middle, bar)
            ax.text(end["at"] + limit * 0.01, middle, end["said"], va="center", fontsize=style.SMALL)
            done = ", ".join(f"{b['what']}{'' if pd.notna(b['end']) else ' (not finished)'}"
                             for b in mine)  # fmt: skip
            sheet.say(f"{drill}, rank {end['rank']}: {done}; {end['said']} after {end['at']:.2f} s")
        sheet.top += 0.34
    ax.set_xlabel("seconds since the call began", labelpad=1)
    return sheet.finish(label)


def _placed(notes: pd.DataFrame, until: float, limit: float, per_inch: float) -> list[dict[str, Any]]:
    """The bars of a lane, with their width, and `above`: the middle of a name that does not fit into its bar."""
    bars, names = [], []
    for bar in notes.sort_values("begin", kind="stable").to_dict("records"):
        over = bar["end"] if pd.notna(bar["end"]) else until
        bar["width"] = max(over - bar["begin"], per_inch * 0.03)
        name = (style.text_width(bar["what"], style.SMALL) + 0.08) * per_inch
        if name > bar["width"]:
            bar["above"] = bar["begin"] + bar["width"] / 2
            names.append((bar, name / 2))
        bars.append(bar)
    free = 0.0
    for bar, half in names:  # to the right of the name before it
        bar["above"] = max(bar["above"], free + half)
        free = bar["above"] + half
    free = limit
    for bar, half in reversed(names):  # and inside of the figure
        bar["above"] = min(bar["above"], free - half)
        free = bar["above"] - half
    return bars


def _bar(ax: Axes, middle: float, bar: dict[str, Any]) -> None:
    colour, top, centre = KINDS[bar["kind"]][0], middle - LANE / 2, bar["begin"] + bar["width"] / 2
    look = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.6}
    look["hatch"] = None if pd.notna(bar["end"]) else "////"
    ax.add_patch(Rectangle((bar["begin"], top), bar["width"], LANE, **look))
    text = {"ha": "center", "va": "center", "fontsize": style.SMALL}
    if "above" in bar:
        ax.plot([centre, bar["above"]], [top, top - 0.05], color=style.QUIET, linewidth=0.6)
        ax.text(bar["above"], top - 0.05 - 0.065, bar["what"], **text)
    else:
        back = {"facecolor": colour, "edgecolor": "none", "pad": 1}
        ax.text(centre, middle, bar["what"], color=style.ink_on(colour), bbox=back, **text)
