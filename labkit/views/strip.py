"""The fragment strip: for each rank on one time axis, what ran compiled, what did not, and where compilation broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from oddrank.strip.forwards import Forward, tables_of, take_forward
from oddrank.strip.words import FOOTNOTE, NOTHING, finding, part, strip_text

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled

__all__ = ["strip"]

GPU = (
    " Lanes are the host's: compute is launching and waiting for the GPU; transfers are gloo's or a stream's."
)
LEFT, ABOVE, LANE, THIN = (
    0.9,
    0.3,
    0.32,
    0.08,
)  # inches: beside the lanes, above one, its height, a transfer's
TICK, NUMBER = 0.07, 0.19  # inches: of a break's tick, and what its number takes
REASONS = 8


@styled
def strip(record: Any, forward: int | str = 0, ranks: Sequence[int] | None = None, label: str = "") -> Figure:
    """Draw one forward, a lane for each rank on one time axis: compute, collectives, lookups, entries, gaps, breaks.

    The height of a bar shows its kind, as its colour does. Breaks are numbered above a lane where there is room, and
    listed with reason and place. Transfers of other threads stand in a thin lane below.

    Args:
        record: what `oddrank.record()` gives, of one rank, merged, or one for each rank. Where `rec.step()` marked
            steps, a step is drawn, and the figure says so.
        forward: its number, or 'typical' for the one of median duration.
        ranks: the ranks to draw; by default all.
        label: the run label; by default that of the record.

    Raises:
        ValueError: a column is missing, or the forward or the rank is unknown.

    >>> import pandas as pd
    >>> columns = ["rank", "forward", "kind", "name", "start_us", "end_us", "compile"]
    >>> rows = [(rank, 0, "compute", "aten::mm", 0.0, 900.0, "") for rank in (0, 1)]
    >>> segments = pd.DataFrame(rows, columns=columns)
    >>> strip({"segments": segments, "ranges": segments.assign(kind="op", thread="main")}, label="gloo · cpu")
    Eager: no collective and no compiled region in one forward. Fragment strip: rank 0: eager, ... [gloo · cpu]
    """
    label = label or getattr(record, "label", "") or tables_of(record).label
    run = take_forward(record, forward, ranks)
    sheet = Sheet()
    if run.empty:
        return empty_figure(sheet, NOTHING, label, finding(run))
    sheet.title(finding(run))
    sheet.say(f"Fragment strip: {strip_text(run)}".replace("\n", "; "))
    sheet.legend(_keys(run))
    pitch, width = ABOVE + LANE + 2 * THIN, sheet.width - LEFT - 0.3
    unit, scale = ("ms", 1.0) if run.duration >= 2 else ("µs", 1000.0)
    ax = sheet.axes(LEFT, width, pitch * len(run.ranks))
    tops = {rank: ABOVE + pitch * i for i, rank in enumerate(run.ranks)}
    ax.set(xlim=(0, run.duration * scale), ylim=(pitch * len(run.ranks), 0), label="whole")
    ax.set_xlabel(f"{unit} since the {run.unit} began", labelpad=1)
    ax.set_yticks([top + LANE / 2 for top in tops.values()], [f"rank {rank}" for rank in tops])
    ax.tick_params(axis="y", length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    for rank, top in tops.items():
        _bars(ax, run.segments[run.segments["rank"] == rank], rank, top, LANE, scale)
        _bars(ax, run.transfers[run.transfers["rank"] == rank], rank, top + LANE + 0.03, THIN, scale)
        _breaks(ax, run.marks[run.marks["rank"] == rank], rank, top, scale, NUMBER * run.duration / width)
        if run.difference and rank in run.difference.spans:
            start, end = (at * scale for at in run.difference.spans[rank])
            thick = max(
                end - start, 0.01 * run.duration * scale
            )  # a sliver of time still gets a box to be seen
            box = Rectangle((start, top - 0.035), thick, LANE + 0.07, fill=False, edgecolor=style.INK)
            ax.add_patch(box).set(linewidth=2.0, clip_on=False, zorder=5, gid="first-difference")
    sheet.top += 0.46  # what the axis takes below
    if run.difference:
        said = f"First difference, outlined: at {part(run)}, {run.difference.text}"
        for line in style.wrap(said, sheet.width - 0.4):
            sheet.text(line, left=0.2)
    _reasons(sheet, run)
    return sheet.finish(label, FOOTNOTE + GPU * run.on_gpu)


def _bars(ax: Axes, mine: pd.DataFrame, rank: int, top: float, height: float, scale: float) -> None:
    for kind, (colour, _) in style.KINDS.items():
        these = mine[mine["kind"] == kind]
        if len(these):  # one collection a kind, however many bars
            spans = zip(these["start"] * scale, (these["end"] - these["start"]) * scale, strict=True)
            high, low = style.SHAPES[kind]
            place = (top + high * height, (low - high) * height)
            look = {"facecolor": colour, "edgecolor": "white", "hatch": style.HATCHES.get(kind)}
            ax.broken_barh(list(spans), place, linewidth=0, gid=f"{kind} rank {rank}", **look)


def _breaks(ax: Axes, mine: pd.DataFrame, rank: int, top: float, scale: float, room: float) -> None:
    ax.vlines(mine["at"] * scale, top - TICK, top, color=style.INK, linewidth=0.8, gid=f"breaks rank {rank}")
    free = -room
    for at, number in sorted(zip(mine["at"], mine["number"], strict=True)):
        if at - free >= room:  # else the tick alone
            free = at
            ax.text(at * scale, top - TICK, number, ha="center", va="bottom", fontsize=style.SMALL)


def _reasons(sheet: Sheet, run: Forward) -> None:
    """List the breaks under the lanes: number, how often, where, why."""
    often = sorted(run.reasons, key=lambda one: -sum(one.executed.values()))[:REASONS]
    if often:
        sheet.text("Where it broke, and why", left=0.2, fontweight="bold")
    for one in (reason for reason in run.reasons if reason in often):
        number = f"{one.number}: " if one.number else ""
        for line in style.wrap(f"{number}{one.times}, {one.place}: {one.reason}", sheet.width - 0.5):
            sheet.text(line, left=0.3)
    if len(run.reasons) > len(often):
        left = len(run.reasons) - len(often)
        sheet.text(f"and {left} more, run less often", left=0.3, color=style.QUIET)


def _keys(run: Forward) -> list[tuple[str, Callable[[Axes, float, float], Any]]]:
    """Legend entries for what occurs in this forward."""
    seen = {*run.segments["kind"], *run.transfers["kind"]}
    keys = [(words, style.swatch(kind)) for kind, (_, words) in style.KINDS.items() if kind in seen]
    if len(run.marks):
        keys.append(("graph break", lambda ax, x, y: ax.vlines(x + 0.1, y, y + 0.12, color=style.INK)))
    if run.difference:
        look = {"fill": False, "edgecolor": style.INK, "linewidth": 1.6}
        box = lambda ax, x, y: ax.add_patch(Rectangle((x + 0.02, y), 0.16, 0.12, **look))  # noqa: E731
        keys.append(("first difference between ranks", box))
    return keys
