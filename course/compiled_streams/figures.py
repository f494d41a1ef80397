"""The figure of this topic: a graph coloured by stream, with the edges that the compiler added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from course.shared.streams import StreamGraph
from course.shared.streams.graph import GraphNode
from course.shared.streams.ops import DEFAULT
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled

__all__ = ["stream_graph"]

HIGH, PITCH, WIDE, TRACK = (
    0.26,
    0.38,
    2.3,
    0.15,
)  # of a box, from box to box, of a box, between edges; in inches
COLOURS = (style.KINDS["compute"][0], "#E69F00", "#009E73", "#CC79A7")  # the default stream, s1, s2, s3
VALUE, ADDED = "#888888", "#D55E00"
Edge = tuple[str, str]


@styled
def stream_graph(graph: StreamGraph, title: str | None = None) -> Figure:
    """Draw a graph in its order: values as edges on the left, what the compiler added on the right.

    A filled box is a kernel, coloured by its stream; an outlined one is a stream operator. Edges run beside the boxes
    and never after one. Inputs, views, and what looks up a stream, are left out.

    Args:
        graph: of `capture`.
        title: the finding; by default the number of edges, or that no stream operator has one.

    Returns:
        The figure; its text lists the edges that were added.
    """
    boxes = [n for n in graph.nodes if n.word not in ("view", "input") and not n.target.startswith("get_")]
    values, added = _values(graph, boxes), _added(graph, boxes)
    places = {node.name: i for i, node in enumerate(boxes)}
    sheet = Sheet()
    counted = f"{len(values)} edge{'s' * (len(values) != 1)} of values, {len(added)} that the compiler added"
    said = counted if added else "nothing ties the stream operators to the values"
    sheet.title(title or f"{graph.name}: {said}")
    sheet.say(*(f"{_words(boxes[places[a]])} -> {_words(boxes[places[b]])}" for a, b in added))
    height = len(boxes) * PITCH
    ax = sheet.axes(0, sheet.width, height)
    sheet.top += 0.1
    ax.set(xlim=(0, sheet.width), ylim=(height, 0))
    ax.axis("off")
    middle = sheet.width / 2
    for node in boxes:
        _box(ax, node, middle, (places[node.name] + 0.5) * PITCH, graph.streams)
    for edges, side, colour, width in ((values, -1, VALUE, 1.1), (added, 1, ADDED, 2.0)):
        for (a, b), track in _tracks([(places[a], places[b]) for a, b in edges]).items():
            _edge(ax, middle + side * WIDE / 2, side * (0.2 + TRACK * track), a, b, colour, width)
    keys = [
        (f"stream {name}", _key(COLOURS[i % len(COLOURS)], 6))
        for i, name in enumerate([DEFAULT, *graph.streams])
    ]
    keys += [("edge of a value", _key(VALUE, 1.1))]
    keys += [("edge that the compiler added", _key(ADDED, 2))] if added else []
    sheet.legend(keys)
    return sheet.finish(graph.label)


def _values(graph: StreamGraph, boxes: list[GraphNode]) -> list[Edge]:
    """Edges from what wrote a value last to the kernels that read it."""
    shown, found = {n.name for n in boxes}, []
    writer: dict[str, str] = {}
    for node in graph.nodes:
        if node.word == "kernel":
            found += [(writer.get(name, name), node.name) for name in node.reads]
            writer |= {name: node.name for name in node.writes}
    return [
        edge for edge in dict.fromkeys(found) if edge[0] in shown and edge[1] in shown and edge[0] != edge[1]
    ]


def _added(graph: StreamGraph, boxes: list[GraphNode]) -> list[Edge]:
    """Edges into stream operators and out of them, views followed to what they are views of."""
    by_name = {n.name: n for n in graph.nodes}
    controls = {n.name for n in boxes if n.word != "kernel"}

    def source(name: str) -> str:
        while by_name[name].word == "view":
            name = by_name[name].needs[0]
        return name

    found = [(source(name), node.name) for node in boxes for name in node.needs if name in by_name]
    shown = {n.name for n in boxes}
    return [e for e in dict.fromkeys(found) if e[0] in shown and controls & set(e)]


def _tracks(edges: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """A track for each edge, short edges next to the boxes, so that no two edges lie on each other."""
    taken: list[list[tuple[int, int]]] = []
    found = {}
    for a, b in sorted(edges, key=lambda edge: (abs(edge[1] - edge[0]), edge)):
        low, high = min(a, b), max(a, b)
        free = (i for i, others in enumerate(taken) if all(high < x or low > y for x, y in others))
        track = next(free, len(taken))
        if track == len(taken):
            taken.append([])
        taken[track].append((low, high))
        found[a, b] = track
    return found


def _edge(ax: Axes, x: float, out: float, a: int, b: int, colour: str, width: float) -> None:
    """From the side of box `a`, a little below its middle, along a track, to the side of box `b`, a little above."""
    start, end = (a + 0.58) * PITCH, (b + 0.42) * PITCH
    ax.plot(
        [x, x + out, x + out], [start, start, end], color=colour, linewidth=width, solid_joinstyle="round"
    )
    ax.annotate("", (x, end), (x + out, end), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": width,
                "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9})  # fmt: skip


def _words(node: GraphNode) -> str:
    if node.word == "kernel":
        return node.target.partition(".")[0]
    return " ".join([node.word, *node.arguments])


def _box(ax: Axes, node: GraphNode, x: float, y: float, streams: list[str]) -> None:
    stream = node.stream
    filled = node.word == "kernel"
    if not filled:  # the stream that an operator acts on is one of its arguments
        of = {"wait_stream": node.arguments[:1], "synchronize_event": ()}.get(node.word, node.arguments[-1:])
        stream = of[0] if of else DEFAULT
    colour = COLOURS[[DEFAULT, *streams].index(stream) % len(COLOURS)]
    ax.add_patch(
        FancyBboxPatch(
            (x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=colour if filled else "white", edgecolor=colour, linewidth=1.8, zorder=3,
        )
    )  # fmt: skip
    ink = style.ink_on(colour) if filled else style.INK
    ax.text(x, y, _words(node), ha="center", va="center", fontsize=style.SMALL, color=ink, zorder=4)


def _key(colour: str, width: float) -> Callable[[Axes, float, float], Any]:
    def draw(ax: Axes, x: float, y: float) -> Any:
        return ax.plot([x, x + 0.2], [0.1, 0.1], color=colour, linewidth=width, solid_capstyle="butt")

    return draw
