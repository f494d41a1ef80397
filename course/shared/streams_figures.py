"""A timeline as a picture, the same for a simulated, a recorded and a live one: lanes, and events between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from course.shared.streams import Timeline
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, ink_on, styled

__all__ = ["timeline", "timeline_text"]

LEFT, LANE, GAP = 1.6, 0.27, 0.08  # inches
KINDS = ("compute", "collective", "copy", "launch", "synchronize")
WORDS = 120  # bars that get their name written in them, at most
ARROWS = 400


@styled
def timeline(
    found: Timeline | Mapping[str, Timeline], *, title: str | None = None, arrows: bool = True
) -> Figure:
    """Draw one timeline, or several one under the other on one axis, with the label that says where they come from.

    Args:
        found: one timeline, or several by name.
        title: the finding; of one timeline by default its name, its length, and its races.
        arrows: from a record to the wait that took it.

    Raises:
        ValueError: the timelines are not counted in the same unit, or have different labels.

    >>> from course.shared.streams import Program, simulate
    >>> program = Program("one kernel")
    >>> program.kernel("k", 2)
    >>> timeline(simulate(program)).summary
    'one kernel: 2 units, no race. [simulated]'
    """
    runs = {found.name: found} if isinstance(found, Timeline) else dict(found)
    label, unit = _one(runs, "label"), _one(runs, "unit")
    sheet = Sheet()
    if all(run.spans.empty for run in runs.values()):
        return empty_figure(sheet, "nothing ran", label, title)
    if title is None and len(runs) == 1:
        title = _headline(*next(iter(runs.items())))
    if title:
        sheet.title(title)
    if title is None or len(runs) > 1:
        sheet.say(*(timeline_text(replace(run, name=name)) for name, run in runs.items()))
    longest = max(run.makespan for run in runs.values()) or 1.0
    for i, (name, run) in enumerate(runs.items()):
        if len(runs) > 1:
            sheet.text(_headline(name, run), fontweight="bold")
        _panel(sheet, run, longest, unit if i == len(runs) - 1 else "", arrows)
    seen = {kind for run in runs.values() for kind in run.spans["kind"]}
    keys = [(style.STREAM_KINDS[kind][1], style.swatch(kind)) for kind in KINDS if kind in seen]
    if arrows and any(len(run.arrows) for run in runs.values()):
        keys.append(("event", _arrow_key))
    sheet.legend(keys)
    return sheet.finish(label)


def timeline_text(run: Timeline) -> str:
    """One line that says what the picture shows.

    >>> from course.shared.streams import Program, simulate
    >>> timeline_text(simulate(Program("nothing")))
    'nothing: 0 units, no race'
    """
    parts = [f"{run.name}: {run.makespan:.4g} {run.unit}"]
    for rank in run.ranks:
        if run.communication(rank):
            who = f"rank {rank}: " if len(run.ranks) > 1 else ""
            parts.append(f"{who}computation beside {run.hidden(rank):.0%} of the communication")
    return ", ".join(filter(None, [*parts, _racing(run)]))


def _one(runs: Mapping[str, Timeline], what: str) -> str:
    values = list(dict.fromkeys(getattr(run, what) for run in runs.values()))
    if len(values) != 1:
        raise ValueError(
            f"timelines on one axis need one {what}, got {', '.join(map(repr, values)) or 'none'}"
        )
    return values[0]


def _headline(name: str, run: Timeline) -> str:
    return ", ".join(filter(None, [f"{name}: {run.makespan:.4g} {run.unit}", _racing(run)]))


def _racing(run: Timeline) -> str:
    """How many races; nothing of what was run without looking for any."""
    if not run.races:
        return "no race" if run.simulated else ""
    causes = ", ".join(dict.fromkeys(race.cause for race in run.races))
    return f"{len(run.races)} race{'s' * (len(run.races) > 1)} ({causes})"


def _panel(sheet: Sheet, run: Timeline, longest: float, unit: str, arrows: bool) -> None:
    lanes = [(rank, lane) for rank in run.ranks for lane in run.lanes(rank)]
    pitch = LANE + GAP
    height = len(lanes) * pitch + GAP
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.3, height)
    sheet.top += 0.5 if unit else 0.12
    zero = float(run.spans["start"].min()) if not run.simulated and len(run.spans) else 0.0
    room = longest * 1.01
    ax.set(xlim=(0, room), ylim=(height, 0), yticks=[])
    ax.set_label(f"timeline {run.name}")
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    if unit:
        ax.set_xlabel(
            f"time, {unit}" + (" (as the program states them)" if run.simulated and unit == "units" else "")
        )
    else:
        ax.tick_params(labelbottom=False)
    several = len(run.ranks) > 1
    tops = {}
    for i, (rank, lane) in enumerate(lanes):
        top = tops[rank, lane] = GAP + i * pitch
        text = f"rank {rank} · {lane}" if several else lane
        where = {"xycoords": ax.get_yaxis_transform(), "xytext": (-7, 0), "textcoords": "offset points"}
        text = style.cut(text, LEFT - 0.15)
        ax.annotate(text, (0, top + LANE / 2), ha="right", va="center", fontsize=style.NORMAL, **where)
    spans = run.spans.assign(start=run.spans["start"] - zero, end=run.spans["end"] - zero)
    spans["top"] = [tops[row.rank, row.lane] for row in spans.itertuples()]
    _bars(ax, spans)
    _words(ax, spans, room / (sheet.width - LEFT - 0.3))
    if arrows and len(run.arrows) <= ARROWS:
        _arrows(ax, run.arrows, tops, zero)


def _bars(ax: Axes, spans: pd.DataFrame) -> None:
    """One collection for each kind and lane, however many bars."""
    for (kind, top), rows in spans.groupby(["kind", "top"]):
        high, low = style.SHAPES[kind]
        bars = list(zip(rows["start"], rows["end"] - rows["start"], strict=True))
        ax.broken_barh(
            bars, (top + high * LANE, (low - high) * LANE), linewidth=0.6, edgecolor="white",
            facecolor=style.STREAM_KINDS[kind][0],
        )  # fmt: skip


def _words(ax: Axes, spans: pd.DataFrame, per_inch: float) -> None:
    named = spans[spans["kind"].isin(["compute", "collective", "copy"])]
    if len(named) > WORDS:
        return
    for bar in named.itertuples():
        text = style.cut(str(bar.name), (bar.end - bar.start) / per_inch - 0.06, 7.5)
        if len(text) < 4 and text != bar.name:
            continue  # one letter of a name says nothing
        middle = bar.top + LANE * sum(style.SHAPES[bar.kind]) / 2
        ink = ink_on(style.STREAM_KINDS[bar.kind][0])
        ax.text(
            (bar.start + bar.end) / 2,
            middle,
            text,
            ha="center",
            va="center_baseline",
            fontsize=7.5,
            color=ink,
        )


def _arrows(ax: Axes, arrows: pd.DataFrame, tops: Mapping[tuple[int, str], float], zero: float) -> None:
    lines: list[list[tuple[float, float]]] = []
    heads: dict[str, list[tuple[float, float]]] = {"v": [], "^": []}
    for row in arrows.itertuples():
        one, other = tops.get((row.rank, row.from_lane)), tops.get((row.rank, row.to_lane))
        if one is None or other is None or one == other:
            continue
        down = other > one
        start, end = row.from_time - zero, max(row.to_time, row.from_time) - zero
        tip = other - 0.03 if down else other + LANE + 0.03
        lines.append([(start, one + (LANE if down else 0)), (end, tip)])
        heads["v" if down else "^"].append((end, tip))
    ax.add_collection(LineCollection(lines, colors=style.INK, linewidths=0.9), autolim=False)
    for marker, places in heads.items():
        if places:  # two artists, however many arrows
            x, y = zip(*places, strict=True)
            ax.scatter(x, y, marker=marker, s=16, color=style.INK, linewidth=0, zorder=4, clip_on=False)


def _arrow_key(ax: Axes, x: float, y: float) -> None:
    ax.plot([x + 0.1, x + 0.1], [y, y + 0.1], color=style.INK, linewidth=0.9)
    ax.scatter([x + 0.1], [y + 0.11], marker="v", s=16, color=style.INK, linewidth=0)
