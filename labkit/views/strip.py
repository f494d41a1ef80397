"""The fragment strip: for each rank on one time axis, what ran compiled, what did not, and where compilation broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oddrank.strip.forwards import Forward, Reason, tables_of
from oddrank.strip.words import FOOTNOTE, NOTHING, described, finding, part, plural, strip_text, take

from labkit.views import style
from labkit.views.lanes import LABEL, Lanes, Span, choose_piece, draw_number, key_entries, same_piece
from labkit.views.style import Figure, Sheet, styled

__all__ = ["strip", "strip_text", "strips"]

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
def strip(
    record: Any,
    forward: int | str = 0,
    ranks: Sequence[int] | None = None,
    title: str | None = None,
    label: str = "",
) -> Figure:
    """Draw one forward, a lane for each rank on one time axis: compute, collectives, lookups, entries, gaps, breaks.

    The height of a bar shows its kind, as its colour does. Breaks are numbered above a lane and listed with reason and
    place. Transfers of other threads stand in a thin lane below, cut where the forward of their rank begins and ends.

    Args:
        record: what `oddrank.record()` gives, of one rank, merged, or one for each rank. Where `rec.step()` marked
            steps, a step is drawn, and the figure says so.
        forward: its number, or 'typical' for the one of median duration.
        ranks: the ranks to draw; by default all.
        title: by default the finding.
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
    if not label and not isinstance(record, Forward):
        label = getattr(record, "label", "") or tables_of(record).label
    run = take(record, forward, ranks)
    sheet = Sheet()
    sheet.title(finding(run) if title is None else title)
    if run.empty:
        return _nothing(sheet, label)
    sheet.say(f"Fragment strip: {strip_text(run)}".replace("\n", "; "))
    sheet.legend(key_entries([run]))
    chosen = choose_piece(run, MANY)
    widest = None if chosen is None else chosen[1] - chosen[0]
    _panel(sheet, run, run.duration, chosen, widest, alone=True)
    _difference(sheet, run)
    _reasons(sheet, [("", reason) for reason in run.reasons])
    return sheet.finish(label, _footnote(sheet, [run]))


@styled
def strips(records: Mapping[str, Any], forward: int | str = 0, label: str = "") -> Figure:
    """Draw several variants under each other on one time scale, and the same piece of each magnified.

    A piece is magnified where a variant is too dense to read, and at most three variants are drawn: the same
    collectives of each, on an axis that starts at 0.

    Args:
        records: a record for each variant, by name.
        forward: its number, or 'typical' for the one of median duration.
        label: the run label.

    Returns:
        The figure.

    Raises:
        ValueError: there are no records, or as for `strip`.
    """
    if not records:
        raise ValueError("nothing to draw: give at least one record by name")
    runs = {name: take(record, forward) for name, record in records.items()}
    sheet = Sheet()
    sheet.title(comparison(runs))
    full = [run for run in runs.values() if not run.empty]
    if not full:
        return _nothing(sheet, label)
    sheet.say("Fragment strips: " + " | ".join(_twin(name, run) for name, run in runs.items()))
    sheet.legend(key_entries(full))
    pieces = same_piece(runs, MANY)
    longest = max(run.duration for run in full)
    widest = max((end - start for start, end in pieces.values()), default=None)
    runs, reasons = _shared_numbers(runs)
    for i, (name, run) in enumerate(runs.items()):
        sheet.top += 0.12 if i else 0.0
        sheet.text(name, fontweight="bold", fontsize=10.5)
        if run.empty:
            sheet.text("nothing was recorded", left=LABEL + 0.15, color=style.QUIET)
            continue
        sheet.top -= 0.02
        sheet.text(described(run), color=style.QUIET, fontsize=style.SMALL + 0.3)
        _panel(sheet, run, longest, pieces.get(name), widest, alone=False)
        _difference(sheet, run)
    _reasons(sheet, reasons)
    return sheet.finish(label, _footnote(sheet, full))


def _twin(name: str, run: Forward) -> str:
    return f"{style.short_name(name)}: {'nothing was recorded' if run.empty else described(run)}"


def comparison(runs: Mapping[str, Forward]) -> str:
    """The finding of several strips, as their title."""
    units = {run.unit for run in runs.values() if not run.empty}
    unit = units.pop() if len(units) == 1 else "program"
    named = [(style.short_name(name), run) for name, run in runs.items()]
    if not any(run.empty or run.counts["regions"].any() for _, run in named):
        python = [name for name, run in named if "dispatch" in set(run.segments["kind"])]
        told = f"; only {''.join(python)} runs Python code of a tensor subclass"
        said = f"One {unit} of {' and '.join(name for name, _ in named)}, nothing compiled"
        return said + told if len(python) == 1 < len(named) else said
    regions = [0 if run.empty else int(run.counts["regions"].max()) for _, run in named]
    many = [plural(regions[0], "compiled region"), *(n or "none" for n in regions[1:])]
    return f"The same {unit}: {', '.join(f'{n} in {name}' for n, (name, _) in zip(many, named, strict=True))}"


def _footnote(sheet: Sheet, runs: Sequence[Forward]) -> str:
    ids = {name for run in runs for name in run.segments["compile"]} - {""}
    named = any(text.get_text() in ids for ax in sheet.fig.axes for text in ax.texts)
    return FOOTNOTE + (GPU if any(run.on_gpu for run in runs) else "") + (IDS if named else "")


def _nothing(sheet: Sheet, label: str) -> Figure:
    sheet.say(NOTHING)
    sheet.text(NOTHING, color=style.QUIET)
    sheet.top += 0.3
    return sheet.finish(label)


def _panel(
    sheet: Sheet,
    run: Forward,
    total: float,
    piece: Span | None,
    widest: float | None,
    alone: bool,
) -> None:
    """Draw the whole forward and, under a beam, a magnified piece of it.

    Args:
        sheet: where to draw.
        run: the forward.
        total: length of the axis of the whole, in ms.
        piece: what is magnified, in ms, or None.
        widest: length of the axis of the piece, in ms.
        alone: no other variant shares the figure; else the axis of the piece begins at 0.
    """
    left, width = LABEL + 0.15, sheet.width - LABEL - 0.45
    unit = "ms" if total >= 2 else "µs"
    lane = 0.32 if alone and piece is None else 0.2
    detail = piece is None and (run.densest <= MANY or len(run.marks) <= FEW * len(run.ranks))
    whole = Lanes(run, 0.0, total, total, width, lane, detail, unit=unit)
    top = sheet.top
    ax = sheet.axes(left, width, whole.height)
    whole.draw(ax)
    ax.set_label("whole")
    if piece is None or widest is None:
        if alone:
            ax.set_xlabel(f"{unit} since the {run.unit} began", labelpad=1)
        else:
            ax.xaxis.set_major_formatter(f"{{x:g}} {unit}")
        sheet.top += AXIS if alone else AXIS - 0.16
        return
    ax.xaxis.set_major_formatter(f"{{x:g}} {unit}")  # the unit in the ticks leaves room for the beam
    start, end = piece
    ends = whole.scaled(start), whole.scaled(end)
    ax.axvspan(*ends, facecolor="none", edgecolor=style.INK, linewidth=1.0, zorder=6)
    sheet.top += AXIS - 0.06
    foot, high, right = top + whole.height, left + width * end / total, left + width * (end - start) / widest
    beam = [(left + width * start / total, foot), (high, foot), (right, sheet.top), (left, sheet.top)]
    sheet.behind(beam, facecolor="#EFEFEF", linewidth=0)
    unit = "µs" if not alone and widest < 2 else unit
    lanes = Lanes(run, start, end, widest, width, 0.42, True, zero=0.0 if alone else start, unit=unit)
    near = sheet.axes(left, width, lanes.height)
    lanes.draw(near)
    near.set_label("magnified")
    since = f"the {run.unit} began" if alone else "this piece began"
    times = total / widest
    near.set_xlabel(f"{unit} since {since} (magnified {times:.{1 if times < 3 else 0}f}×)", labelpad=1)
    sheet.top += AXIS


def _difference(sheet: Sheet, run: Forward) -> None:
    if run.difference is None:
        return
    said = f"First difference, outlined: at {part(run)}, {run.difference.text}"
    lines = style.wrap(said, sheet.width - 0.4)
    for line in lines:
        sheet.text(line, left=0.2)
    sheet.top += 0.05


def _reasons(sheet: Sheet, reasons: Sequence[tuple[str, Reason]]) -> None:
    """List the breaks under the lanes: number, how often, where, why."""
    if not reasons:
        return
    shown = sorted(reasons, key=lambda r: -sum(r[1].executed.values()))[:REASONS]
    shown = [r for r in reasons if r in shown]
    sheet.top += 0.06
    sheet.text("Where it broke, and why", left=0.2, fontweight="bold")
    times = [r.times for _, r in shown]
    after = 0.55 + max(style.text_width(t, style.NORMAL, "bold") for t in times) + 0.15
    places = [f"{name} {r.place}".strip() for name, r in shown]
    middle = after + min(PLACE, max(style.text_width(p) for p in places)) + 0.2
    for (_, reason), often, place in zip(shown, times, places, strict=True):
        lines = style.wrap(reason.reason, sheet.width - middle - 0.15)
        if len(lines) > 2:
            lines = [lines[0], style.cut(" ".join(lines[1:]), sheet.width - middle - 0.15)]
        if reason.number:
            ax = sheet.axes(0.2, 0.3, 0.21, top=sheet.top)
            ax.set(xlim=(0, 0.3), ylim=(0.21, 0))
            ax.set_axis_off()
            draw_number(ax, [0.12], [0.06], reason.number)
        top = sheet.top
        sheet.text(often, left=0.55, top=top, fontweight="bold")
        sheet.text(style.cut(place, PLACE), left=after, top=top)
        for i, line in enumerate(lines):
            sheet.text(line, left=middle, top=top + 0.17 * i, color=style.QUIET)
        sheet.top += 0.21 + 0.17 * (len(lines) - 1)
    if len(reasons) > len(shown):
        sheet.text(f"and {len(reasons) - len(shown)} more, run less often", left=0.55, color=style.QUIET)


def _shared_numbers(runs: Mapping[str, Forward]) -> tuple[dict[str, Forward], list[tuple[str, Reason]]]:
    """Number the breaks of all variants together, so that a number means one place and reason in the whole figure."""
    numbers: dict[tuple[str, str], int] = {}
    renumbered: dict[str, Forward] = {}
    listed: list[tuple[str, Reason]] = []
    several = sum(bool(run.reasons) for run in runs.values()) > 1
    for name, run in runs.items():
        mine: dict[int, int] = {}
        for reason in run.reasons:
            if reason.number:
                mine[reason.number] = numbers.setdefault((reason.reason, reason.place), len(numbers) + 1)
            listed.append(
                (
                    f"{style.short_name(name)}:" if several else "",
                    replace(reason, number=mine.get(reason.number, 0)),
                )
            )
        renumbered[name] = replace(run, marks=run.marks.assign(number=run.marks["number"].map(mine)))
    return renumbered, listed
