"""A graph drawn: boxes from top to bottom in the order they depend on each other, collectives in their own colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from labkit.graphs.frame import Frame
from labkit.graphs.nodes import Node
from labkit.graphs.nodes import nodes as read
from labkit.views import style
from labkit.views.blocks import MOST, Box, Folded, fold
from labkit.views.style import KINDS, Figure, Sheet, styled

__all__ = ["graph", "graph_text"]

WIDE, HIGH, ACROSS, DOWN = 2.85, 0.44, 0.3, 0.24  # a box and the gaps beside and below it, in inches
IN_A_ROW = 3
# fill, edge, width of the edge: kinds differ in more than colour (a collective's edge is thick, and it has a sign)
LOOKS: dict[str, tuple[str, str, float]] = {
    "input": ("#FFFFFF", "#999999", 1.0),
    "output": ("#E6E6E6", "#222222", 1.0),
    "op": ("#E3EEF6", KINDS["compute"][0], 0.8),
    "collective": ("#FBE3D6", KINDS["collective"][0], 2.6),
    "wait": ("#E4F3FC", KINDS["wait"][0], 1.6),
    "more": ("#FFFFFF", "#999999", 0.8),
}
WORDS = {
    "op": "operations of one line",
    "collective": "collective",
    "wait": "wait for one",
    "input": "inputs",
}
SIGNS = {"collective": "⇄ ", "wait": "… "}


def graph_text(what: Any, stage: str = "dynamo", most: int = MOST) -> str:
    """What the drawing shows, one box a line.

    >>> code = "class G:\\n    def forward(self, x: 'f32[4]'):\\n        y: 'f32[4]' = torch.ops.aten.sin.default(x)"
    >>> print(graph_text(code + "\\n        return (y,)"))
    1 operation, no collective
      1 input: x
      sin: f32[4]
      output
    """
    folded = fold(_nodes(what, stage), most)
    lines = [_counts(folded)]
    for box in folded.boxes:
        times = f" (x {box.times})" if box.times > 1 else ""
        lines.append(f"  {SIGNS.get(box.kind, '')}{box.title}{f': {box.below}' if box.below else ''}{times}")
    return "\n".join(lines)


@styled
def graph(what: Any, stage: str = "dynamo", title: str = "", most: int = MOST, label: str = "") -> Figure:
    """Draw one graph: of a Frame at a `stage`, or of a graph's printed text.

    Operations of one line of the reader's code are one box; what repeats (the blocks of a model) is drawn once with
    how often; a graph that is still larger than `most` boxes keeps its beginning and end.

    Raises ValueError for what is no graph or has none at this stage.
    """
    folded = fold(_nodes(what, stage), most)
    sheet = Sheet()
    name = f"{stage} of {what.title}" if isinstance(what, Frame) else stage
    sheet.title(title or f"{name}: {_counts(folded)}")
    if not folded.boxes:
        sheet.text("There is nothing in it to draw.", color=style.QUIET)
        return sheet.finish(label)
    kinds = [kind for kind in WORDS if any(box.kind == kind for box in folded.boxes)]
    sheet.legend([(WORDS[kind], _key(kind)) for kind in kinds])
    rows = _rows(folded)
    at = _places(folded, rows, sheet.width)
    height = max(y for _, y in at.values()) + HIGH + 0.1
    ax = sheet.axes(0, sheet.width, height)
    ax.set(xlim=(0, sheet.width), ylim=(height, 0))
    ax.set_axis_off()
    fed = {b for a, b in folded.edges if folded.boxes[a].kind != "input"}
    far = [a for a, b in folded.edges if folded.boxes[a].kind == "input" and b in fed]
    for a, b in folded.edges:
        # most inputs are weights: a line from the top to every box that also has another input would say little
        if folded.boxes[a].kind != "input" or b not in fed:
            _edge(ax, at[a], at[b])
    for i, box in enumerate(folded.boxes):
        _box(ax, box, *at[i])
    sheet.say("From top to bottom: " + "; ".join(_said(box) for box in folded.boxes[:12]))
    left_out = (
        f"{len(far)} lines from the inputs to boxes that have other inputs as well are left out."
        if far
        else ""
    )
    return sheet.finish(label, left_out)


def _nodes(what: Any, stage: str) -> list[Node]:
    if isinstance(what, Frame):
        return what.nodes(stage)
    if isinstance(what, str):
        return read(what)
    raise ValueError(f"graph draws a Frame or a graph's printed text, and got a {type(what).__name__}")


def _counts(folded: Folded) -> str:
    n = folded.operations
    called = ", ".join(f"{count} {name}" for name, count in folded.collectives) or "no collective"
    return f"{n:,} operation{'' if n == 1 else 's'}, {called}"


def _said(box: Box) -> str:
    return f"{box.title} ({box.below})" if box.below else box.title


def _rows(folded: Folded) -> list[list[int]]:
    """Boxes by the longest way that leads to them, wide layers cut into several rows."""
    layer = [0] * len(folded.boxes)
    for a, b in folded.edges:  # sorted, and every edge leads forwards
        layer[b] = max(layer[b], layer[a] + 1)
    for i in range(
        len(layer) - 1
    ):  # what stands later is never drawn above a repetition it does not belong to
        if folded.boxes[i].repeat != folded.boxes[i + 1].repeat:
            floor = max(layer[: i + 1]) + 1
            shift = floor - layer[i + 1]
            if shift > 0:
                layer[i + 1 :] = [max(level, floor) for level in layer[i + 1 :]]
                for a, b in folded.edges:
                    if b > i:
                        layer[b] = max(layer[b], layer[a] + 1)
    rows: list[list[int]] = []
    for level in sorted(set(layer)):
        mine = [i for i, at in enumerate(layer) if at == level]
        rows += [mine[k : k + IN_A_ROW] for k in range(0, len(mine), IN_A_ROW)]
    return rows


def _places(folded: Folded, rows: Sequence[Sequence[int]], width: float) -> dict[int, tuple[float, float]]:
    """The upper left corner of every box: each row in the middle, ordered by where its boxes' inputs stand."""
    at: dict[int, tuple[float, float]] = {}
    above: dict[int, list[int]] = {}
    for a, b in folded.edges:
        above.setdefault(b, []).append(a)
    y = 0.05
    for row in rows:

        def middle(i: int) -> float:
            known = [at[a][0] for a in above.get(i, ()) if a in at]
            return sum(known) / len(known) if known else width / 2

        ordered = sorted(row, key=middle)
        left = (width - len(row) * WIDE - (len(row) - 1) * ACROSS) / 2
        for k, i in enumerate(ordered):
            at[i] = (left + k * (WIDE + ACROSS), y)
        y += HIGH + DOWN
    return at


def _edge(ax: Axes, a: tuple[float, float], b: tuple[float, float]) -> None:
    start, end = (a[0] + WIDE / 2, a[1] + HIGH), (b[0] + WIDE / 2, b[1])
    rows = (end[1] - start[1]) / (HIGH + DOWN)
    if rows < 1:
        bend = [(start[0], start[1] + DOWN * 0.6), (end[0], end[1] - DOWN * 0.6)]
    else:  # past the boxes in between, at their left or right side
        side = -1 if b[0] <= a[0] else 1
        out = side * (WIDE / 2 + 0.35 + 0.1 * min(rows, 5)) * 4 / 3
        bend = [(start[0] + out, start[1] + DOWN), (end[0] + out, end[1] - DOWN)]
    path = Path([start, *bend, end], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    ax.add_patch(PathPatch(path, facecolor="none", edgecolor="#888888", linewidth=0.9, zorder=1))
    ax.plot([end[0]], [end[1] - 0.035], marker="v", markersize=4, color="#888888", zorder=2)


def _box(ax: Axes, box: Box, x: float, y: float) -> None:
    fill, edge, width = LOOKS[box.kind]
    shape = FancyBboxPatch(
        (x, y), WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.06", facecolor=fill, edgecolor=edge,
        linewidth=width, linestyle="--" if box.kind == "more" else "-", zorder=3,
    )  # fmt: skip
    ax.add_patch(shape)
    times = f"×{box.times}" if box.times > 1 else ""
    room = WIDE - 0.16 - (style.text_width(times, style.NORMAL, "bold") + 0.1 if times else 0)
    heavy = "bold" if box.kind == "collective" else "normal"
    title = style.cut(SIGNS.get(box.kind, "") + box.title, room * (0.92 if heavy == "bold" else 1))
    place = {"va": "center", "zorder": 4, "parse_math": False}
    up = y + HIGH * (0.32 if box.below else 0.5)
    ax.text(x + 0.08, up, title, fontsize=style.NORMAL, fontweight=heavy, color=style.INK, **place)
    if box.below:
        below = style.cut(box.below, WIDE - 0.16, style.SMALL - 0.5)
        ax.text(x + 0.08, y + HIGH * 0.75, below, fontsize=style.SMALL - 0.5, color="#555555", **place)
    if times:
        look = {"fontsize": style.NORMAL, "fontweight": "bold", "color": style.INK}
        ax.text(x + WIDE - 0.08, up, times, ha="right", **look, **place)


def _key(kind: str) -> Any:
    fill, edge, width = LOOKS[kind]

    def draw(ax: Axes, x: float, y: float) -> None:
        shape = FancyBboxPatch(
            (x, y), 0.2, 0.12, boxstyle="round,pad=0,rounding_size=0.02", facecolor=fill, edgecolor=edge,
            linewidth=width,
        )  # fmt: skip
        ax.add_patch(shape)

    return draw
