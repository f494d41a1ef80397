"""Figures of lesson 02: who waits, and where, if a rank comes late."""

from __future__ import annotations

import pandas as pd

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, label_rows, patch, styled
from labkit.views.tables import need

__all__ = ["timeline"]

# what a rank does: the colour, and the words of the legend
PARTS = {
    "late": ("#DDDDDD", "late (arranged)"),
    "call": (style.KINDS["collective"][0], "the call"),
    "other work": (style.KINDS["compute"][0], "other work (arranged)"),
    "first read": (style.KINDS["wait"][0], "the first read"),
}
NAMES, BAR, PITCH = 1.7, 0.26, 0.36  # inches


@styled
def timeline(spans: pd.DataFrame, label: str = "") -> Figure:
    """Draw a row for each form and rank: what it did, from when to when.

    Args:
        spans: a row each, with form, rank, what (of PARTS), start and end in ms.
        label: the run label.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.
    """
    spans = need(spans, ["form", "rank", "what", "start", "end"], "spans")
    sheet = Sheet()
    if spans.empty:
        return empty_figure(sheet, "Nothing was measured", label)
    rows = list(dict.fromkeys(zip(spans["form"], spans["rank"], strict=True)))
    sheet.title(_headline(spans))
    sheet.legend(
        [(words, patch(colour)) for what, (colour, words) in PARTS.items() if what in set(spans["what"])]
    )
    ax = sheet.axes(NAMES, sheet.width - NAMES - 0.3, PITCH * len(rows))
    ax.set(ylim=(PITCH * len(rows), 0), xlim=(0, float(spans["end"].max()) * 1.02))
    for i, (form, rank) in enumerate(rows):
        mine = spans[(spans["form"] == form) & (spans["rank"] == rank)]
        for bar in mine.itertuples():
            top, colour = PITCH * i + (PITCH - BAR) / 2, PARTS[str(bar.what)][0]
            ax.broken_barh([(bar.start, bar.end - bar.start)], (top, BAR), facecolor=colour, linewidth=0)
        said = ", ".join(f"{b.what} {b.start:.0f} to {b.end:.0f} ms" for b in mine.itertuples())
        sheet.say(f"{form}, rank {rank}: {said}")
    label_rows(
        ax, [PITCH * (i + 0.5) for i in range(len(rows))], [f"{form}, rank {rank}" for form, rank in rows]
    )
    ax.set_xlabel("ms", labelpad=1)
    sheet.top += 0.4
    return sheet.finish(label)


def _headline(spans: pd.DataFrame) -> str:
    """Where the first rank spends most time, call or read, for each form."""
    first = spans[(spans["rank"] == spans["rank"].min()) & spans["what"].isin(["call", "first read"])]
    said = []
    for form, mine in first.groupby("form", sort=False):
        lasts = (mine["end"] - mine["start"]).set_axis(mine["what"])
        said.append(f"{form}, the {lasts.idxmax()} ({lasts.max():.0f} ms)")
    return f"What waits for the late rank: {'; '.join(said)}"
