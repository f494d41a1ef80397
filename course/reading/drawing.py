"""Drawings of a compiled graph: a line of the reader's code is one box, and what repeats is drawn once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from oddrank.stages import Frame, Node
from oddrank.stages import nodes as parse

from labkit.views import style
from labkit.views.style import KINDS, Figure, Sheet, styled

__all__ = ["draw_graph"]

MOST = 26  # boxes in a drawing
_OPS = 3  # operations named in a box
HIGH, PITCH, LANE = 0.27, 0.38, 0.17  # the height of a box, from box to box, and from lane to lane, in inches
OPS = ("op", "read")  # the kinds of nodes that share a box with others of their line
OPS_WIDE = 0.4  # of a box is for its operations, the rest for the line of code
LINE = "#777777"
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


@styled
def draw_graph(what: Any, stage: str = "dynamo", label: str = "", mark: str = "") -> Figure:
    """Draw one graph from top to bottom, collectives in their own colour.

    Operations of one line of the reader's code are one box. An arrow, or a line at the right, leads from a box to each
    box that uses its result; boxes without one do not feed each other. What repeats, such as the blocks of a model, is
    drawn once with its number of repetitions. A graph that is still too large keeps its beginning and end.

    Args:
        what: a Frame, or a graph's printed text.
        stage: of a Frame.
        label: the run label.
        mark: the title of a box; lines at the right that lead to it are dark and thick.

    Returns:
        The figure.

    Raises:
        ValueError: `what` is no graph, or has none at this stage.
    """
    folded = fold(_nodes(what, stage))
    sheet = Sheet()
    name = f"{stage} of {what.title}" if isinstance(what, Frame) else stage
    sheet.title(f"{name}: {_counts(folded)}")
    if not folded.boxes:
        sheet.text("There is nothing in it to draw.", color=style.QUIET)
        return sheet.finish(label)
    kinds = [kind for kind in WORDS if any(box.kind == kind for box in folded.boxes)]
    sheet.legend([(WORDS[kind], _key(kind)) for kind in kinds])
    lanes = _lanes(folded)
    room = sheet.width - 0.3
    wide = room - LANE * (1 + max(lanes.values(), default=-1))
    ax = sheet.axes(0.15, room, len(folded.boxes) * PITCH)
    ax.set(xlim=(0, room), ylim=(len(folded.boxes) * PITCH, 0))
    ax.set_axis_off()
    _edges(ax, folded, lanes, wide, mark)
    for i, box in enumerate(folded.boxes):
        _box(ax, box, i * PITCH, wide)
    sheet.say("From top to bottom: " + "; ".join(_said(box) for box in folded.boxes[:12]))
    return sheet.finish(label)


def _nodes(what: Any, stage: str) -> list[Node]:
    if isinstance(what, Frame):
        return what.nodes(stage)
    if isinstance(what, str):
        return parse(what)
    raise ValueError(f"draw_graph takes a Frame or a graph's printed text, and got a {type(what).__name__}")


def _counts(folded: Folded) -> str:
    n = folded.operations
    called = ", ".join(f"{count} {name}" for name, count in folded.collectives) or "no collective"
    return f"{n:,} operation{'' if n == 1 else 's'}, {called}"


def _said(box: Box) -> str:
    return f"{box.title} ({box.below})" if box.below else box.title


def _lanes(folded: Folded) -> dict[int, int]:
    """The lane of each box whose result is used further down than by its neighbour; 0 is next to the boxes.

    Every box has one lane for all who use its result, and no two lanes that run side by side are the same.
    """
    last = {a: b for a, b in folded.edges if b > a + 1}  # sorted, so the last target of each remains
    lanes: dict[int, int] = {}
    for a in sorted(last, key=lambda a: (last[a] - a, a)):
        taken = {lanes[other] for other in lanes if other <= last[a] and a <= last[other]}
        lanes[a] = next(lane for lane in range(len(last)) if lane not in taken)
    return lanes


def _edges(ax: Axes, folded: Folded, lanes: dict[int, int], wide: float, mark: str) -> None:
    """Draw an arrow to the box below, and lines through the lanes at the right to all others: none crosses a box."""
    usual = {"color": LINE, "linewidth": 0.9}
    for a, lane in lanes.items():
        x, leaves = wide + (lane + 0.9) * LANE, a * PITCH + HIGH * 0.8
        far = [b for source, b in folded.edges if source == a and b > a + 1]
        marked = any(folded.boxes[b].title == mark for b in far)
        line = {"color": style.INK, "linewidth": 2.4} if marked else usual
        arrivals = []
        for b in far:
            # several lines that reach the same box reach it at several heights
            sources = [source for source, target in folded.edges if target == b and source < b - 1]
            arrivals.append(b * PITCH + HIGH * (0.15 + 0.5 * (sources.index(a) + 0.5) / len(sources)))
        ax.plot([wide, x, x], [leaves, leaves, arrivals[-1]], **line)
        for y in arrivals:
            ax.plot([x, wide + 0.05], [y, y], **line)
            ax.plot([wide + 0.04], [y], marker="<", markersize=3.5, color=line["color"])
            ax.plot([x], [y], marker="o", markersize=2.4, color=line["color"])
    for a, b in folded.edges:
        if b == a + 1:
            ax.plot([0.3, 0.3], [a * PITCH + HIGH, b * PITCH], **usual)
            ax.plot([0.3], [b * PITCH - 0.03], marker="v", markersize=3.5, color=LINE)


def _box(ax: Axes, box: Box, y: float, wide: float) -> None:
    fill, edge, width = LOOKS[box.kind]
    shape = FancyBboxPatch(
        (0, y), wide, HIGH, boxstyle="round,pad=0,rounding_size=0.05", facecolor=fill, edgecolor=edge,
        linewidth=width, linestyle="--" if box.kind == "more" else "-", zorder=3, clip_on=False,
    )  # fmt: skip
    ax.add_patch(shape)
    place = {"va": "center", "zorder": 4, "parse_math": False, "fontsize": style.NORMAL}
    heavy = "bold" if box.kind == "collective" else "normal"
    room = wide * OPS_WIDE - 0.2
    title = style.cut(SIGNS.get(box.kind, "") + box.title, room * (0.92 if heavy == "bold" else 1))
    middle = y + HIGH / 2
    ax.text(0.1, middle, title, fontweight=heavy, color=style.INK, **place)
    ax.text(
        wide * OPS_WIDE, middle, style.cut(box.below, wide * (1 - OPS_WIDE) - 0.6), color="#555555", **place
    )
    if box.times > 1:
        ax.text(wide - 0.1, middle, f"×{box.times}", ha="right", fontweight="bold", color=style.INK, **place)


def _key(kind: str) -> Any:
    fill, edge, width = LOOKS[kind]

    def draw(ax: Axes, x: float, y: float) -> None:
        shape = FancyBboxPatch(
            (x, y), 0.2, 0.12, boxstyle="round,pad=0,rounding_size=0.02", facecolor=fill, edgecolor=edge,
            linewidth=width,
        )  # fmt: skip
        ax.add_patch(shape)

    return draw


@dataclass(frozen=True)
class Box:
    """Nodes that follow one another, drawn as one box.

    Args:
        kind: input, op, collective, wait, output or more.
        title: the first line.
        below: the second line.
        members: names of the nodes.
        count: number of nodes.
        times: repetitions; the nodes are those of the first one.
        repeat: boxes with the same number above 0 repeat together.
    """

    kind: str  # input, op, collective, wait, output or more
    title: str
    below: str
    members: tuple[str, ...]
    count: int
    times: int = 1
    repeat: int = 0  # boxes with the same number above 0 repeat together

    @property
    def alike(self) -> tuple[str, str, int]:
        """What two boxes that do the same have in common."""
        return self.kind, self.title + self.below, self.count


@dataclass(frozen=True)
class Folded:
    """Boxes in order, edges between them by index, and the numbers of operations and of each collective."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    operations: int
    collectives: tuple[tuple[str, int], ...]


def fold(nodes: Sequence[Node], most: int = MOST) -> Folded:
    """Fold a graph into boxes. Collectives keep boxes of their own as long as possible.

    Args:
        nodes: of the graph.
        most: about how many boxes to keep.

    Returns:
        The boxes with their edges.
    """
    boxes = _by_line(nodes)
    owner = {name: i for i, box in enumerate(boxes) for name in box.members}
    where = list(range(len(boxes)))  # of each first box, the one it is drawn as
    boxes, where = _repeats(boxes, where) if len(boxes) > most else (boxes, where)
    boxes, where = _merge(boxes, where) if len(boxes) > most else (boxes, where)
    boxes, where = _middle(boxes, where, most) if len(boxes) > most else (boxes, where)
    edges = set()
    for node in nodes:
        there = where[owner[node.name]] if node.name in owner else -1
        for name in node.inputs:
            here = where[owner[name]] if name in owner else -1
            if 0 <= here < there:
                edges.add((here, there))
    called = Counter(node.short for node in nodes if node.kind == "collective")
    operations = sum(node.kind in (*OPS, "collective", "wait") for node in nodes)
    return Folded(tuple(boxes), tuple(sorted(edges)), operations, tuple(called.items()))


def _by_line(nodes: Sequence[Node]) -> list[Box]:
    """A box for the inputs, one for each run of operations of the same line, one for a collective with its wait."""
    boxes: list[Box] = []
    inputs = [node for node in nodes if node.kind == "input"]
    if inputs:
        names = ", ".join(node.name for node in inputs[:2]) + (", ..." if len(inputs) > 2 else "")
        title = f"{len(inputs)} input{'' if len(inputs) == 1 else 's'}"
        boxes.append(Box("input", title, names, tuple(n.name for n in inputs), len(inputs)))
    run: list[Node] = []

    def close() -> None:
        if run:
            boxes.append(_operations(run))
            run.clear()

    for node in nodes:
        if node.kind == "input":
            continue
        if node.kind in OPS and not (run and (node.at, node.code) != (run[-1].at, run[-1].code)):
            run.append(node)
            continue
        close()
        last = boxes[-1] if boxes else None
        if (
            node.kind == "wait"
            and last
            and last.kind == "collective"
            and node.inputs[:1] == last.members[-1:]
        ):
            boxes[-1] = replace(
                last, title=f"{last.title} + wait", members=(*last.members, node.name), count=2
            )
        elif node.kind in OPS:
            run.append(node)
        else:
            below = "" if node.kind == "output" else _below([node])
            boxes.append(Box(node.kind, node.short, below, (node.name,), 1))
    close()
    return boxes


def _operations(run: Sequence[Node]) -> Box:
    names = [node.short for node in run]
    title = ", ".join(names[:_OPS]) + (f" + {len(names) - _OPS} more" if len(names) > _OPS else "")
    return Box("op", title, _below(run), tuple(node.name for node in run), len(run))


def _below(run: Sequence[Node]) -> str:
    own = not run[0].at.startswith("torch/")  # the line of torch's own wrapper says less than the shape
    return (run[0].code if own else "") or (run[-1].shape if len(run) == 1 else run[0].at)


def _repeats(boxes: list[Box], where: list[int]) -> tuple[list[Box], list[int]]:
    """Draw repetitions once, starting with the one that saves most boxes."""
    number = 0
    while True:
        start, period, times = _best(boxes)
        if times < 2:
            return boxes, where
        number += 1
        end = start + period * times
        first = [
            replace(box, times=box.times * times, repeat=box.repeat or number)
            for box in boxes[start : start + period]
        ]

        def now(i: int, start: int = start, period: int = period, end: int = end) -> int:
            if i < start:
                return i
            return start + (i - start) % period if i < end else i - (end - start - period)

        where = [now(i) for i in where]
        boxes = [*boxes[:start], *first, *boxes[end:]]


def _best(boxes: Sequence[Box]) -> tuple[int, int, int]:
    """The start, length and count of the repetition that saves most boxes."""
    kinds: dict[tuple[str, str, int], int] = {}
    # what was folded already does not fold again: nested repetition reads badly
    ids = [kinds.setdefault(b.alike, len(kinds)) if b.times == 1 else -1 - i for i, b in enumerate(boxes)]
    found, saved = (0, 0, 1), 0
    for period in range(1, min(len(ids) // 2, 60) + 1):
        length = 0  # of the run in which each box equals the one a period later
        for i in range(len(ids) - period):
            length = length + 1 if ids[i] == ids[i + period] else 0
            times = length // period + 1
            # the shortest period that saves as much wins, and the earliest start
            if length % period == 0 and times > 1 and period * (times - 1) > saved:
                found, saved = (i + 1 - length, period, times), period * (times - 1)
    return found


def _merge(boxes: list[Box], where: list[int]) -> tuple[list[Box], list[int]]:
    """Neighbours that are no collectives become one box."""
    out: list[Box] = []
    to: list[int] = []
    for box in boxes:
        last = out[-1] if out else None
        if last and last.kind == box.kind == "op" and last.repeat == box.repeat:
            count = last.count + box.count
            first = last.title.split(" ... ")[0].split(",")[0]
            title = f"{first} ... {box.title.split(', ')[-1].split(' + ')[0]}"
            members = (*last.members, *box.members)
            out[-1] = Box("op", title, f"{count} operations", members, count, last.times, last.repeat)
        else:
            out.append(box)
        to.append(len(out) - 1)
    return out, [to[i] for i in where]


def _middle(boxes: list[Box], where: list[int], most: int) -> tuple[list[Box], list[int]]:
    """Keep the beginning and the end, and count what is between them."""
    head, tail = most // 2, most - most // 2 - 1
    left_out = boxes[head : len(boxes) - tail]
    count = sum(box.count * box.times for box in left_out)
    called = sum(box.times for box in left_out if box.kind == "collective")
    said = (
        f"{called} collective{'' if called == 1 else 's'} among them"
        if called
        else "no collective among them"
    )
    more = Box("more", f"... {count:,} more operations", said, (), count)
    end = len(boxes) - tail

    def now(i: int) -> int:
        return i if i < head else head if i < end else i - (end - head) + 1

    return [*boxes[:head], more, *boxes[end:]], [now(i) for i in where]
