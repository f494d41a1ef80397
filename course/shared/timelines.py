"""Timelines of ranks that end differently: what each rank did, what it did not finish, and how its part ended."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.style import KINDS, Figure, Sheet, panel_heading, patch, styled
from labkit.views.tables import need

__all__ = ["ENDS", "NOTES", "timelines"]

LANE, LEFT = 0.34, 0.75
NOTES = ["drill", "rank", "kind", "what", "begin", "end"]
ENDS = ["drill", "rank", "at", "said"]


@styled
def timelines(
    notes: pd.DataFrame,
    ends: pd.DataFrame,
    label: str = "",
    title: str = "",
    timeout: tuple[float, float] | None = None,
    arranged: str = "",
) -> Figure:
    """Draw what each rank did over time, a panel for each drill and a lane for each rank.

    Args:
        notes: Bars, with the columns drill, rank, kind (of `style.KINDS`), what, begin and end in seconds since the
            drill began. A bar without an end is hatched and reaches to where the drill's call ended.
        ends: drill, rank, at (seconds), said (how this rank's part ended).
        label: The run label.
        title: The finding.
        timeout: When a collective begins to wait, and when it gives up, in seconds; marked by a line.
        arranged: What is arranged in the drills, as a sentence below the title.

    Returns:
        The figure.

    Raises:
        ValueError: If a column is missing.
    """
    notes, ends = need(notes, NOTES, "notes"), need(ends, ENDS, "ends")
    sheet = Sheet()
    hatched = "Hatched: not finished when the call ended." if notes["end"].isna().any() else ""
    marked = f"Dashed: a timeout of {timeout[1] - timeout[0]:.3g} s would end here." if timeout else ""
    sheet.title(title, " ".join(filter(None, [hatched, marked, arranged])))
    used = [kind for kind in KINDS if kind in set(notes["kind"])]
    sheet.legend([(KINDS[kind][1], patch(KINDS[kind][0])) for kind in used])
    limit = max(ends["at"].max(), *(timeout or ()), 0.1) * 1.02
    wide = sheet.width - LEFT - 0.35 - max(style.text_width(said, style.SMALL) for said in ends["said"])
    for drill, rows in ends.groupby("drill", sort=False):
        panel_heading(sheet, str(drill))
        ax = sheet.axes(LEFT, wide, (LANE + 0.06) * len(rows))
        ax.set(xlim=(0, limit), ylim=(len(rows), 0))
        ax.spines["left"].set_visible(False)
        ax.set_yticks([i + 0.5 for i in range(len(rows))], [f"rank {rank}" for rank in rows["rank"]])
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
        for lane, end in enumerate(rows.to_dict("records")):
            mine = notes[(notes["drill"] == drill) & (notes["rank"] == end["rank"])]
            for bar in mine.to_dict("records"):
                _bar(ax, lane, bar, end["at"], limit / wide)
            ax.text(end["at"] + limit * 0.01, lane + 0.5, end["said"], va="center", fontsize=style.SMALL)
            done = ", ".join(f"{b['what']}{'' if pd.notna(b['end']) else ' (not finished)'}"
                             for b in mine.to_dict("records"))  # fmt: skip
            sheet.say(f"{drill}, rank {end['rank']}: {done}; {end['said']} after {end['at']:.2f} s")
        if timeout:
            ax.axvline(timeout[1], color=style.INK, linestyle="--", linewidth=1.2)
            ax.axvspan(*timeout, ymin=0.97, color=style.INK)
        sheet.top += 0.34
    ax.set_xlabel("seconds since the call began", labelpad=1)
    return sheet.finish(label)


def _bar(ax: Axes, lane: int, bar: dict[str, Any], until: float, per_inch: float) -> None:
    ended = pd.notna(bar["end"])
    width = max((bar["end"] if ended else until) - bar["begin"], per_inch * 0.03)
    colour = KINDS[bar["kind"]][0]
    look = {"facecolor": colour, "edgecolor": "white", "hatch": None if ended else "////", "linewidth": 0.6}
    ax.add_patch(Rectangle((bar["begin"], lane + 0.1), width, 0.8, **look))
    if style.text_width(bar["what"], style.SMALL) < width / per_inch - 0.08:
        back = {"facecolor": colour, "edgecolor": "none", "pad": 1}
        ax.text(
            bar["begin"] + width / 2, lane + 0.5, bar["what"], ha="center", va="center", fontsize=style.SMALL,
            color=style.ink_on(colour), bbox=back,
        )  # fmt: skip
