"""The fragment strip: for each rank on one time axis, what ran compiled, what did not, and where compilation broke."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oddrank.strip.forwards import Forward, Reason, tables_of, take_forward
from oddrank.strip.words import FOOTNOTE, NOTHING, finding, part, strip_text

from labkit.views import style
from labkit.views.lanes import LABEL, Lanes, choose_piece, draw_number, key_entries
from labkit.views.style import Figure, Sheet, styled

__all__ = ["strip"]

GPU = (
    " Lanes are the host's: compute is launching and waiting for the GPU; transfers are gloo's or a stream's."
)
IDS = " 1/0 in a bar: the region that Dynamo numbered so."
MANY = 160  # segments a lane beyond which the whole forward alone cannot be read
FEW = 30  # breaks a rank that are numbered in a lane however dense it is
REASONS = 8
PLACE = 4.4  # inches that a place in the code may take
AXIS = 0.46  # inches that a time axis takes


@styled
def strip(record: Any, forward: int | str = 0, ranks: Sequence[int] | None = None, label: str = "") -> Figure:
    """Draw one forward, a lane for each rank on one time axis: compute, collectives, lookups, entries, gaps, breaks.

    The height of a bar shows its kind, as its colour does. Breaks are numbered above a lane and listed with reason and
    place. Transfers of other threads stand in a thin lane below, cut where the forward of their rank begins and ends.

    Args:
        record: what `oddrank.record()` gives, of one rank, merged, or one for each rank. Where `rec.step()` marked
            steps, a step is drawn, and the figure says so.
        forward: its number, or 'typical' for the one of median duration.
        ranks: the ranks to draw; by default all.
        label: the run label; by default that of the record.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing, or the forward or the rank is unknown.

    >>> import pandas as pd
    >>> columns = ["rank", "forward", "kind", "name", "start_us", "end_us", "compile"]
    >>> rows = [(rank, 0, "compute", "aten::mm", 0.0, 900.0, "") for rank in (0, 1)]
    >>> segments = pd.DataFrame(rows, columns=columns)
    >>> ranges = segments.assign(kind="op", thread="main")
    >>> figure = strip({"segments": segments, "ranges": ranges}, label="gloo · cpu")
    >>> print(figure.texts[0].get_text())
    Eager: no collective and no compiled region in one forward
    """
    label = label or getattr(record, "label", "") or tables_of(record).label
    run = take_forward(record, forward, ranks)
    sheet = Sheet()
    sheet.title(finding(run))
    if run.empty:
        sheet.say(NOTHING)
        sheet.text(NOTHING, color=style.QUIET)
        sheet.top += 0.3
        return sheet.finish(label)
    sheet.say(f"Fragment strip: {strip_text(run)}".replace("\n", "; "))
    sheet.legend(key_entries(run))
    _lanes(sheet, run)
    if run.difference is not None:
        said = f"First difference, outlined: at {part(run)}, {run.difference.text}"
        for line in style.wrap(said, sheet.width - 0.4):
            sheet.text(line, left=0.2)
        sheet.top += 0.05
    _reasons(sheet, run.reasons)
    ids = set(run.segments["compile"]) - {""}
    named = any(text.get_text() in ids for ax in sheet.fig.axes for text in ax.texts)
    return sheet.finish(label, FOOTNOTE + GPU * run.on_gpu + IDS * named)


def _lanes(sheet: Sheet, run: Forward) -> None:
    """Draw the whole forward and, where that is too dense to read, a magnified piece of it under a beam."""
    left, width = LABEL + 0.15, sheet.width - LABEL - 0.45
    total, piece = run.duration, choose_piece(run, MANY)
    unit = "ms" if total >= 2 else "µs"
    since = f"{unit} since the {run.unit} began"
    detail = piece is None and (run.densest <= MANY or len(run.marks) <= FEW * len(run.ranks))
    whole = Lanes(run, 0.0, total, width, 0.32 if piece is None else 0.2, detail, unit)
    top = sheet.top
    ax = sheet.axes(left, width, whole.height)
    whole.draw(ax)
    ax.set_label("whole")
    sheet.top += AXIS
    if piece is None:
        ax.set_xlabel(since, labelpad=1)
        return
    ax.xaxis.set_major_formatter(f"{{x:g}} {unit}")  # the unit in the ticks leaves room for the beam
    start, end = piece
    ends = whole.scaled(start), whole.scaled(end)
    ax.axvspan(*ends, facecolor="none", edgecolor=style.INK, linewidth=1.0, zorder=6)
    sheet.top -= 0.06
    foot, high = top + whole.height, left + width * end / total
    beam = [(left + width * start / total, foot), (high, foot), (left + width, sheet.top), (left, sheet.top)]
    sheet.behind(beam, facecolor="#EFEFEF", linewidth=0)
    lanes = Lanes(run, start, end, width, 0.42, True, unit)
    near = sheet.axes(left, width, lanes.height)
    lanes.draw(near)
    near.set_label("magnified")
    times = total / (end - start)
    near.set_xlabel(f"{since} (magnified {times:.{1 if times < 3 else 0}f}×)", labelpad=1)
    sheet.top += AXIS


def _reasons(sheet: Sheet, reasons: Sequence[Reason]) -> None:
    """List the breaks under the lanes: number, how often, where, why."""
    if not reasons:
        return
    shown = sorted(reasons, key=lambda reason: -sum(reason.executed.values()))[:REASONS]
    shown = [reason for reason in reasons if reason in shown]
    sheet.top += 0.06
    sheet.text("Where it broke, and why", left=0.2, fontweight="bold")
    after = 0.55 + max(style.text_width(one.times, style.NORMAL, "bold") for one in shown) + 0.15
    middle = after + min(PLACE, max(style.text_width(one.place) for one in shown)) + 0.2
    for reason in shown:
        lines = style.wrap(reason.reason, sheet.width - middle - 0.15)
        if len(lines) > 2:
            lines = [lines[0], style.cut(" ".join(lines[1:]), sheet.width - middle - 0.15)]
        if reason.number:
            ax = sheet.axes(0.2, 0.3, 0.21, top=sheet.top)
            ax.set(xlim=(0, 0.3), ylim=(0.21, 0))
            ax.set_axis_off()
            draw_number(ax, [0.12], [0.06], reason.number)
        top = sheet.top
        sheet.text(reason.times, left=0.55, top=top, fontweight="bold")
        sheet.text(style.cut(reason.place, PLACE), left=after, top=top)
        for i, line in enumerate(lines):
            sheet.text(line, left=middle, top=top + 0.17 * i, color=style.QUIET)
        sheet.top += 0.21 + 0.17 * (len(lines) - 1)
    if len(reasons) > len(shown):
        sheet.text(f"and {len(reasons) - len(shown)} more, run less often", left=0.55, color=style.QUIET)
