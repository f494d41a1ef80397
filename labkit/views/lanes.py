"""The lanes of a fragment strip: what the main thread of each rank did, with breaks above and transfers below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from oddrank.strip.forwards import Forward, collectives

from labkit.views import style
from labkit.views.style import ink_on

__all__ = ["LABEL", "Lanes", "choose_piece", "draw_number", "key_entries"]

LABEL = 0.75  # inches left of the lanes for "rank 0"
MARK = 0.18  # inches that one row of break numbers takes
TICK = 0.07
WORDS = 60  # bars of a lane that get their name written in them, at most


@dataclass(frozen=True)
class Lanes:
    """One forward between `start` and `end` ms, drawn on an axis `inches` wide.

    Args:
        run: the forward.
        start, end: in ms.
        inches: width of the axis.
        lane: height of a lane in inches.
        detail: write break numbers, and names of bars where there is room.
        unit: of the axis, 'ms' or 'µs'.
    """

    run: Forward
    start: float
    end: float
    inches: float
    lane: float
    detail: bool
    unit: str

    @property
    def above(self) -> float:
        """Inches over a lane, for the ticks of its breaks and the rows of numbers that this window needs."""
        if self.run.marks.empty:
            return 0.06
        rows = max((row for placed in self._numbers.values() for _, _, row in placed), default=-1) + 1
        return TICK + 0.05 + MARK * rows

    @property
    def below(self) -> float:
        return 0.12 if len(self.run.transfers) else 0.0

    @property
    def height(self) -> float:
        """Inches that all lanes take."""
        return len(self.run.ranks) * self._pitch

    @property
    def _pitch(self) -> float:
        return self.above + self.lane + self.below + 0.05

    @property
    def _per_inch(self) -> float:
        return (self.end - self.start) / self.inches

    def scaled(self, ms: Any) -> Any:
        """Convert times in ms into numbers on the axis of this panel."""
        return ms * (1000.0 if self.unit == "µs" else 1.0)

    def draw(self, ax: Axes) -> None:
        """Draw the lane of every rank."""
        ax.set(xlim=(self.scaled(self.start), self.scaled(self.end)), ylim=(self.height, 0), yticks=[])
        ax.spines["left"].set_visible(False)
        for i, rank in enumerate(self.run.ranks):
            top = i * self._pitch + self.above
            place = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "gid": "lane-label"}
            look = {"ha": "right", "va": "center", "fontsize": style.NORMAL}
            ax.annotate(f"rank {rank}", (0, top + self.lane / 2), (-7, 0), **place, **look)
            self._bars(ax, self.run.segments, rank, top, self.lane)
            if self.below:
                self._bars(ax, self.run.transfers, rank, top + self.lane + 0.03, self.below - 0.04)
            self._words(ax, rank, top)
            self._breaks(ax, rank, top)
            self._outline(ax, rank, top)

    def _within(self, frame: pd.DataFrame, rank: int) -> pd.DataFrame:
        return frame[(frame["rank"] == rank) & (frame["end"] > self.start) & (frame["start"] < self.end)]

    def _bars(self, ax: Axes, frame: pd.DataFrame, rank: int, top: float, height: float) -> None:
        mine = self._within(frame, rank)
        start = self.scaled(mine["start"].clip(lower=self.start))
        length = self.scaled(mine["end"].clip(upper=self.end)) - start
        for kind, (colour, _) in style.KINDS.items():
            these = (mine["kind"] == kind).to_numpy()
            if these.any():  # one collection a kind, however many bars
                spans = list(zip(start[these], length[these], strict=True))
                high, low = style.SHAPES[kind]
                look = {"facecolor": colour, "edgecolor": "white", "hatch": style.HATCHES.get(kind)}
                bars = ax.broken_barh(
                    spans, (top + high * height, (low - high) * height), linewidth=0, **look
                )
                bars.set_gid(f"{kind} rank {rank}")

    def _words(self, ax: Axes, rank: int, top: float) -> None:
        """Names in the bars that are wide enough: which region computes, which collective."""
        mine = self._within(self.run.segments, rank)
        mine = mine[mine["kind"].isin(["compute", "collective"])]
        if not self.detail or len(mine) > WORDS:
            return
        for bar in mine.itertuples():
            start, end = max(bar.start, self.start), min(bar.end, self.end)
            text = _name(bar)
            if text and style.text_width(text, 7.5) + 0.06 <= (end - start) / self._per_inch:
                at, middle = self.scaled((start + end) / 2), top + self.lane * sum(style.SHAPES[bar.kind]) / 2
                ink = ink_on(style.KINDS[bar.kind][0])
                ax.text(at, middle, text, ha="center", va="center", fontsize=7.5, color=ink)

    @cached_property
    def _numbers(self) -> dict[int, list[tuple[float, int, int]]]:
        """By rank: (ms, number, row) of the breaks with room for a number in one of two rows."""
        placed: dict[int, list[tuple[float, int, int]]] = {}
        if not self.detail or self.run.marks.empty:
            return placed
        for rank, mine in self._marks().groupby("rank"):
            free = [-float("inf")] * 2
            for at, number in zip(mine["at"], mine["number"], strict=True):
                row = next((row for row in (0, 1) if at - free[row] >= 0.19 * self._per_inch), None)
                if row is not None:  # a break too close to both rows keeps its tick alone
                    free[row] = at
                    placed.setdefault(int(rank), []).append((at, int(number), row))
        return placed

    def _marks(self) -> pd.DataFrame:
        marks = self.run.marks
        return marks[marks["at"].between(self.start, self.end)].sort_values("at")

    def _breaks(self, ax: Axes, rank: int, top: float) -> None:
        if self.run.marks.empty:
            return
        mine = self._marks()
        mine = mine[mine["rank"] == rank]
        if mine.empty:
            return
        ticks = ax.vlines(self.scaled(mine["at"]), top - TICK, top, color=style.INK, linewidth=0.8)
        ticks.set_gid(f"breaks rank {rank}")
        points: dict[int, list[tuple[float, float]]] = {}
        for at, number, row in self._numbers.get(rank, []):
            points.setdefault(number, []).append((self.scaled(at), top - TICK - MARK * (row + 0.5)))
        for number, places in points.items():
            draw_number(ax, [x for x, _ in places], [y for _, y in places], number)

    def _outline(self, ax: Axes, rank: int, top: float) -> None:
        found = self.run.difference
        if found is None or rank not in found.spans:
            return
        start, end = found.spans[rank]
        if end < self.start or start > self.end:
            return
        # a sliver of time still gets a box that can be seen
        grow = max(0.0, 0.08 * self._per_inch - (end - start)) / 2 + 0.02 * self._per_inch
        left, right = self.scaled(start - grow), self.scaled(end + grow)
        shape = Rectangle(
            (left, top - 0.035), right - left, self.lane + 0.07, fill=False, edgecolor=style.INK
        )
        shape.set(linewidth=2.0, clip_on=False, zorder=5, gid="first-difference")
        ax.add_patch(shape)


def _name(bar: Any) -> str:
    """The text of a bar: the collective, the region that computes, or the eager operator."""
    if bar.kind == "collective":
        return bar.name.split(":")[-1].strip("_")
    return bar.compile or bar.name.removeprefix("aten::")


def draw_number(ax: Axes, x: Sequence[float], y: Sequence[float], number: int) -> None:
    """Draw the number of a break in a circle, at one or several places."""
    circle = {"s": 105, "facecolor": "white", "edgecolor": style.INK, "linewidth": 0.8}
    ax.scatter(x, y, marker="o", zorder=4, clip_on=False, **circle).set_gid(f"number {number}")
    glyph = 22 if number < 10 else 42
    ax.scatter(x, y, marker=f"${number}$", s=glyph, color=style.INK, linewidth=0.2, zorder=5, clip_on=False)


def key_entries(run: Forward) -> list[tuple[str, Callable]]:
    """Legend entries for what occurs in this forward."""
    seen = {*run.segments["kind"], *run.transfers["kind"]}
    entries: list[tuple[str, Callable]] = [
        (words, style.swatch(kind)) for kind, (_, words) in style.KINDS.items() if kind in seen
    ]
    if len(run.marks):
        entries.append(("graph break", _tick_key))
    if run.difference:
        entries.append(("first difference between ranks", _box_key))
    return entries


def _tick_key(ax: Axes, x: float, y: float) -> None:
    ax.plot([x + 0.1, x + 0.1], [y, y + 0.12], color=style.INK, linewidth=1.2)


def _box_key(ax: Axes, x: float, y: float) -> None:
    ax.add_patch(Rectangle((x + 0.02, y), 0.16, 0.12, fill=False, edgecolor=style.INK, linewidth=1.6))


# --- The piece of a forward to magnify: a typical block, or where ranks first differ ---

Span = tuple[float, float]

LEAST = 2.0  # a piece that would be magnified less is not worth a panel of its own
PIECE = 4  # collectives in a piece where no repeating pattern of regions says how long a block is


def choose_piece(run: Forward, many: int) -> Span | None:
    """Choose the piece of one forward to magnify: where ranks first differ, else a typical block.

    Args:
        run: the forward.
        many: the number of segments on a rank beyond which the whole cannot be read.

    Returns:
        Start and end in ms, or None where the whole can be read, or the piece would be magnified less than `LEAST`
        times.
    """
    if run.densest <= many:
        return None
    start, end = _difference(run) if run.difference else _typical_block(run)
    return (start, end) if run.duration >= LEAST * (end - start) else None


def _typical_block(run: Forward) -> Span:
    """The block that takes nearest to the median, so that a moment in which the machine was busy is not magnified.

    A block is one period in the sequence of regions that the collectives of the lowest rank stand in, or `PIECE`
    collectives where that sequence shows none (one region, or no region). Where there are graph breaks, it holds one.
    """
    mine = run.segments[run.segments["rank"] == run.ranks[0]]
    calls = collectives(mine)
    if calls.empty:
        return run.duration * 0.45, run.duration * 0.55
    ids = list(calls["compile"])
    length = next((p for p in range(2, len(ids) // 2 + 1) if ids[p:] == ids[:-p]), 0)
    if not length or len(set(ids)) == 1:
        length = PIECE
    ends = np.sort(mine.loc[mine["kind"] == "collective", "end"])  # with the waits that belong to them
    firsts = calls["start"].to_numpy()[length::length]  # of each block but the first one
    edges = [0.0, *ends[np.searchsorted(ends, firsts, side="right") - 1].tolist(), run.duration]
    blocks = list(zip(edges, edges[1:], strict=False))
    # the ends of a forward also hold what comes before its first and after its last block
    inner = blocks[1:-1] or blocks
    median = np.median([end - start for start, end in inner])
    broken = [block for block in inner if run.marks["at"].between(*block).any()]
    return min(broken or inner, key=lambda block: abs(block[1] - block[0] - median))


def _difference(run: Forward) -> Span:
    assert run.difference is not None
    start = min(start for start, _ in run.difference.spans.values())
    end = max(end for _, end in run.difference.spans.values())
    margin = max(0.02 * run.duration, 2 * (end - start))
    return max(0.0, start - margin), min(run.duration, end + margin)
