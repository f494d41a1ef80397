"""Times of variants on each rank, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from labkit.views import style
from labkit.views.style import (
    NAME_WIDTH,
    Figure,
    Sheet,
    by_evidence,
    empty_figure,
    label_rows,
    note_beside,
    panel_heading,
    styled,
    variant_colour,
)
from labkit.views.tables import need

__all__ = ["timings"]

RIGHT = 2.35  # inches for the numbers beside a plot
MARKERS = "osD^vPX*"


@styled
def timings(samples: pd.DataFrame, title: str | None = None, label: str = "", per: str = "forward") -> Figure:
    """Draw the times of every rank: faint rounds, a bar from p10 to p90, the median, in ms and as frames a second.

    Args:
        samples: a table with the columns variant, rank, round and seconds. With a column `evidence` each kind of
            evidence gets a panel and a time axis of its own, because they measure different things.
        title: by default the shortest and the longest median.
        label: the run label.
        per: what a sample is the time of; only a forward makes a frame.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.

    >>> rows = [(v, i, 0, s + i / 1000) for v, s in (("A", 0.008), ("B", 0.012)) for i in range(5)]
    >>> figure = timings(pd.DataFrame(rows, columns=["variant", "round", "rank", "seconds"]), label="host only")
    """
    samples = need(samples, ["variant", "round", "rank", "seconds"], "samples")
    sheet = Sheet()
    if samples.empty:
        return empty_figure(sheet, "No sample was taken", label, title)
    sheet.title(_fastest(samples) if title is None else title)
    ranks = sorted(samples["rank"].unique())
    medians = [(f"median, rank {r}", _key(MARKERS[i % 8], style.INK)) for i, r in enumerate(ranks)]
    sheet.legend([*medians, ("p10 to p90", _bar_key), ("one round", _key(".", "#555555"))])
    for name, part in by_evidence(samples):
        variants = list(pd.unique(part["variant"]))
        lanes = len(variants) * (0.14 * len(ranks) + 0.16)
        panel_heading(sheet, name)
        quiet = {"fontsize": style.SMALL, "color": style.QUIET}
        sheet.text("median of all ranks", left=sheet.width - RIGHT + 0.13, top=sheet.top - 0.16, **quiet)
        sheet.top += 0.03
        ax = sheet.axes(NAME_WIDTH, sheet.width - NAME_WIDTH - RIGHT, lanes)
        _timing_rows(ax, part, variants, ranks, per)
        medians_ms = part.groupby("variant", sort=False)["seconds"].median() * 1e3
        sheet.say(
            f"Medians{f', {name}' if name else ''}: "
            + ", ".join(f"{style.short_name(str(v))} {ms:.3g} ms" for v, ms in medians_ms.items())
        )
        ax.set_xlabel(f"ms per {per}", labelpad=1)
        sheet.top += 0.44
    return sheet.finish(label)


def _timing_rows(
    ax: Axes, part: pd.DataFrame, variants: Sequence[str], ranks: Sequence[int], per: str
) -> None:
    step, pitch = 0.14, 0.14 * len(ranks) + 0.16
    ax.set_ylim(len(variants) * pitch, 0)
    centres = []
    for i, variant in enumerate(variants):
        middle = (i + 0.5) * pitch
        centres.append(middle)
        mine = part[part["variant"] == variant]
        for j, rank in enumerate(ranks):
            ms = mine.loc[mine["rank"] == rank, "seconds"].to_numpy() * 1e3
            if not len(ms):
                continue
            y, colour = middle + (j - (len(ranks) - 1) / 2) * step, variant_colour(variant)
            low, median, high = np.quantile(ms, [0.1, 0.5, 0.9])
            faint = {"alpha": 0.6, "markersize": 3.6, "markeredgewidth": 0, "zorder": 3}
            ax.plot(ms, np.full(len(ms), y), ".", color=colour, **faint)
            ax.plot([low, high], [y, y], color=colour, linewidth=4.5, alpha=0.3, solid_capstyle="butt")
            ax.plot(median, y, MARKERS[j % 8], color=colour, markersize=6, markeredgecolor="white", zorder=4)
        median = float(np.median(mine["seconds"]) * 1e3)
        rate = f"    {1000 / median:{',.0f' if median < 10 else '.3g'}} frames/s" if per == "forward" else ""
        note_beside(ax, middle, f"{median:.3g} ms{rate}")
    label_rows(ax, centres, variants)
    # a round in which the machine was busy elsewhere must not squeeze all others into a corner
    slow = float(part.groupby(["variant", "rank"])["seconds"].quantile(0.9).max() * 1e3)
    ax.set_xlim(0, slow * 1.12)
    beyond = int((part["seconds"] * 1e3 > slow * 1.12).sum())
    if beyond:
        said = "1 slower round lies" if beyond == 1 else f"{beyond} slower rounds lie"
        quiet = {"ha": "right", "fontsize": 7.5, "color": style.QUIET}
        # above the rows, where no point can lie
        ax.annotate(f"{said} to the right", (1, 1), (0, 3), "axes fraction", "offset points", **quiet)


def _key(marker: str, colour: str) -> Any:
    return lambda ax, x, y: ax.plot(
        x + 0.13, y + 0.06, marker, color=colour, markersize=6, markeredgecolor="none"
    )


def _bar_key(ax: Axes, x: float, y: float) -> None:
    ax.plot(
        [x + 0.02, x + 0.22], [y + 0.06] * 2, color=style.INK, alpha=0.3, linewidth=4.5, solid_capstyle="butt"
    )


def _fastest(samples: pd.DataFrame) -> str:
    """The two ends of the medians, taken from a real link where there is one."""
    found = by_evidence(samples)
    name, part = next(((name, part) for name, part in found if name != "host only"), found[0])
    medians = part.groupby("variant")["seconds"].median().sort_values() * 1e3
    where = f" ({name})" if len(found) > 1 else ""
    if len(medians) == 1:
        return f"{medians.index[0]}: {medians.iloc[0]:.3g} ms a forward{where}"
    ends = [f"{style.short_name(str(v))} with {medians[v]:.3g} ms" for v in medians.index[[0, -1]]]
    return f"Shortest median forward: {ends[0]}; longest: {ends[1]}{where}"
