"""A stream timeline as a picture, the same for a simulated, a recorded and a live one: lanes, events, path, races."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from labkit.lessons.shared.streams import Timeline
from labkit.lessons.shared.streams_words import add_words
from labkit.report import Report
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, ink_on, styled

__all__ = ["timeline", "timeline_text"]

LEFT, LANE, GAP = 1.6, 0.27, 0.08  # inches
KINDS = ("compute", "collective", "peer", "copy", "work", "launch", "synchronize")
WORDS = 120  # bars that get their name written in them, at most
ARROWS = 400
MOST_LISTED = 6  # races in words
EXAMPLES = 3  # of more races than that
RACE = "#000000"


@styled
def timeline(
    found: Timeline | Report | Mapping[str, Timeline] | Sequence[Timeline],
    *,
    title: str | None = None,
    path: bool = True,
    arrows: bool = True,
) -> Figure:
    """Draw one timeline, or several one under the other on one axis, with the label that says where they come from.

    path: mark the critical path, where there is one. arrows: from a record to the wait that took it. Raises ValueError
    for timelines that are not counted in the same unit or have different labels, which must not share an axis.

    >>> from labkit.lessons.shared.streams import Program, simulate
    >>> program = Program("one kernel")
    >>> program.kernel("k", 2)
    >>> timeline(simulate(program)).summary
    'one kernel: 2 units, no race. [simulated]'
    """
    runs = _runs(found)
    label, unit = _one(runs, "label"), _one(runs, "unit")
    sheet = Sheet()
    if all(run.spans.empty for run in runs.values()):
        return empty_figure(sheet, "nothing ran", label, title)
    said = [timeline_text(run.renamed(name)) for name, run in runs.items()]
    if title is None and len(runs) == 1:
        (run,) = runs.values()
        title = _headline(run.name, run)
    if title:
        sheet.title(title)
    if title is None or len(runs) > 1:
        sheet.say(*said)
    longest = max(run.makespan for run in runs.values()) or 1.0
    for i, (name, run) in enumerate(runs.items()):
        if len(runs) > 1:
            sheet.text(_headline(name, run), fontweight="bold")
        _panel(sheet, run, longest, unit if i == len(runs) - 1 else "", path, arrows)
        _list(sheet, run)
    seen = {kind for run in runs.values() for kind in _kinds(run)}
    keys = [(style.STREAM_KINDS[kind][1], style.swatch(kind)) for kind in KINDS if kind in seen]
    if path and any(run.path is not None and len(run.path) for run in runs.values()):
        keys.append(("critical path", _path_key))
    if arrows and any(len(run.arrows) for run in runs.values()):
        keys.append(("event", _arrow_key))
    sheet.legend(keys)
    return sheet.finish(label)


def timeline_text(run: Timeline) -> str:
    """One line that says what the picture shows.

    >>> from labkit.lessons.shared.streams import Program, simulate
    >>> timeline_text(simulate(Program("nothing")))
    'nothing: 0 units, no race'
    """
    parts = [f"{run.name}: {_size(run)}"]
    for rank in run.ranks:
        if run.communication(rank):
            who = f"rank {rank}: " if len(run.ranks) > 1 else ""
            parts.append(f"{who}computation beside {run.hidden(rank):.0%} of the communication")
    return ", ".join(filter(None, [*parts, _racing(run)]))


def _runs(found: Any) -> dict[str, Timeline]:
    if isinstance(found, Report):
        found = Timeline.of_report(found)
    if isinstance(found, Timeline):
        return {found.name: found}
    return dict(found) if isinstance(found, Mapping) else {run.name: run for run in found}


def _one(runs: Mapping[str, Timeline], what: str) -> str:
    values = list(dict.fromkeys(getattr(run, what) for run in runs.values()))
    if len(values) != 1:
        raise ValueError(
            f"timelines on one axis need one {what}, got {', '.join(map(repr, values)) or 'none'}"
        )
    return values[0]


def _size(run: Timeline) -> str:
    return f"{run.makespan:.4g} {run.unit}"


def _headline(name: str, run: Timeline) -> str:
    return ", ".join(filter(None, [f"{name}: {_size(run)}", _racing(run)]))


def _racing(run: Timeline) -> str:
    """How many races; nothing of what was run without looking for any."""
    if not run.races:
        return "no race" if run.simulated or run.path is not None else ""
    causes = ", ".join(dict.fromkeys(race.cause for race in run.races))
    return f"{len(run.races)} race{'s' * (len(run.races) > 1)} ({causes})"


def _kinds(run: Timeline) -> set[str]:
    late = run.spans["work"] > run.spans["start"]
    return set(run.spans["kind"]) | ({"peer"} if late.any() else set())


def _panel(sheet: Sheet, run: Timeline, longest: float, unit: str, path: bool, arrows: bool) -> None:
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
        ax.set_xlabel(f"time, {unit}" + (" (as the program states them)" if run.simulated else ""))
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
    spans = run.spans.assign(start=run.spans["start"] - zero, work=run.spans["work"] - zero)
    spans["end"] = run.spans["end"] - zero
    spans["top"] = [tops[row.rank, row.lane] for row in spans.itertuples()]
    per_inch = room / (sheet.width - LEFT - 0.3)
    _bars(ax, spans)
    _words(ax, spans, per_inch)
    if path and run.path is not None:
        _path(ax, run.path, tops)
    if arrows and len(run.arrows) <= ARROWS:
        _arrows(ax, run.arrows, tops, zero)
    _races(ax, run, spans, per_inch)


def _bars(ax: Axes, spans: pd.DataFrame) -> None:
    """One collection for each kind and lane, however many bars."""
    parts = [
        *((kind, spans[spans["kind"] == kind], "work", "end") for kind in KINDS if kind != "peer"),
        ("peer", spans[spans["work"] > spans["start"]], "start", "work"),
    ]
    for kind, rows, start, end in parts:
        high, low = style.SHAPES[kind]
        look = {
            "facecolor": style.STREAM_KINDS[kind][0],
            "edgecolor": "white",
            "hatch": style.HATCHES.get(kind),
        }
        for top, mine in rows.groupby("top"):
            bars = list(zip(mine[start], mine[end] - mine[start], strict=True))
            ax.broken_barh(bars, (top + high * LANE, (low - high) * LANE), linewidth=0.6, **look)


def _words(ax: Axes, spans: pd.DataFrame, per_inch: float) -> None:
    named = spans[spans["kind"].isin(["compute", "collective", "copy", "work"])]
    if len(named) > WORDS:
        return
    found = []
    for bar in named.itertuples():
        text = style.cut(str(bar.name), (bar.end - bar.work) / per_inch - 0.06, 7.5)
        if len(text) < 4 and text != bar.name:
            continue  # one letter of a name says nothing
        place = ((bar.work + bar.end) / 2, bar.top + LANE * sum(style.SHAPES[bar.kind]) / 2)
        found.append((text, place, ink_on(style.STREAM_KINDS[bar.kind][0])))
    if found:
        words, places, inks = zip(*found, strict=True)
        add_words(ax, words, places, inks)


def _path(ax: Axes, path: pd.DataFrame, tops: Mapping[tuple[int, str], float]) -> None:
    lines = [
        [(row.start, y), (row.end, y)]
        for row in path.itertuples()
        if (row.rank, row.lane) in tops
        for y in [tops[row.rank, row.lane] + LANE + 0.03]
    ]
    ax.add_collection(LineCollection(lines, colors=style.INK, linewidths=2.6), autolim=False)


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


def _races(ax: Axes, run: Timeline, spans: pd.DataFrame, per_inch: float) -> None:
    """A box around both ops of a race, with its number, as in the list below."""
    places = {(row.rank, row.op): row for row in spans.itertuples() if row.lane != "host"}
    boxes, numbers, corners = [], [], []
    taken: dict[tuple[float, float], int] = {}  # numbers of one place stand beside each other
    for number, race in enumerate(run.races[:9], 1):
        for index in (race.first, race.second):
            row = places.get((race.rank, index))
            if row is not None:
                top, bottom = row.top - 0.02, row.top + LANE + 0.02
                boxes.append([(row.start, top), (row.end, top), (row.end, bottom), (row.start, bottom)])
                numbers.append(str(number))
                beside = taken[row.start, row.top] = taken.get((row.start, row.top), -1) + 1
                corners.append((row.start + 0.15 * beside * per_inch, row.top))
    if not boxes:
        return
    look = {"facecolors": "none", "edgecolors": RACE, "linewidths": 1.8, "linestyles": [(0, (3, 1.5))]}
    ax.add_collection(PolyCollection(boxes, clip_on=False, zorder=5, label="races", **look), autolim=False)
    x, y = zip(*corners, strict=True)
    ax.scatter(x, y, s=95, facecolor="white", edgecolor=RACE, linewidth=0.8, clip_on=False, zorder=5.5)
    words = add_words(ax, numbers, corners, [RACE] * len(numbers), size=7)
    if words is not None:
        words.set_clip_on(False)


def _list(sheet: Sheet, run: Timeline) -> None:
    """The races and what else there is to say, in words."""
    listed = len(run.races) if len(run.races) <= MOST_LISTED else EXAMPLES
    shown = [f"{number}  {race.text}" for number, race in enumerate(run.races[:listed], 1)]
    if len(run.races) > listed:
        shown.append(f"and {len(run.races) - listed} more")
    for text in [*shown, *run.notes[: 2 if shown else 4]]:
        for i, line in enumerate(style.wrap(text, sheet.width - 0.5, style.SMALL)):
            sheet.text(line, left=0.15 + 0.16 * (i > 0), fontsize=style.SMALL, color=style.INK)
    if shown or run.notes:
        sheet.top += 0.08


def _path_key(ax: Axes, x: float, y: float) -> None:
    ax.plot([x, x + 0.2], [y + 0.07, y + 0.07], color=style.INK, linewidth=2.6)


def _arrow_key(ax: Axes, x: float, y: float) -> None:
    ax.plot([x + 0.1, x + 0.1], [y, y + 0.1], color=style.INK, linewidth=0.9)
    ax.scatter([x + 0.1], [y + 0.11], marker="v", s=16, color=style.INK, linewidth=0)
