"""A graph of hundreds of nodes as few boxes: a line of the reader's code is one, and what repeats is drawn once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.graphs.nodes import Node

__all__ = ["Box", "Folded", "fold"]

MOST = 26  # boxes in a drawing
_OPS = 3  # operations named in a box


@dataclass(frozen=True)
class Box:
    """What is drawn as one: nodes that follow one another. `times` above 1: the first of so many repetitions."""

    kind: str  # input, op, collective, wait, output or more
    title: str
    below: str
    members: tuple[str, ...]
    count: int
    times: int = 1
    repeat: int = 0  # boxes with the same number above 0 repeat together

    @property
    def alike(self) -> tuple[str, str, int]:
        """What two boxes have in common that do the same."""
        return self.kind, self.title + self.below, self.count


@dataclass(frozen=True)
class Folded:
    """The boxes in order, edges between them by index, and how many nodes and collectives there are in all."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    operations: int
    collectives: tuple[tuple[str, int], ...]


def fold(nodes: Sequence[Node], most: int = MOST) -> Folded:
    """Fold a graph's nodes into at most about `most` boxes. Collectives stay boxes of their own as long as they can."""
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
    operations = sum(node.kind in ("op", "collective", "wait") for node in nodes)
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
        if node.kind == "op" and not (run and (node.at, node.code) != (run[-1].at, run[-1].code)):
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
        elif node.kind == "op":
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
    """Draw once what repeats: the repetition that saves most, again and again."""
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
    """Where a sequence of boxes repeats: its start, its length, and how often; the one that saves most boxes."""
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
    """Keep the beginning and the end, and count what is between."""
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
