"""A forward's time on the main thread in segments: every nanosecond in exactly one, of exactly one kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from oddrank.record.timeline import Event

__all__ = ["KINDS", "Segment", "partition"]

KINDS = ("compute", "dispatch", "collective", "lookup", "entry", "python", "compile")

_OWN = {
    "compiled": "compute",
    "op": "compute",
    "dispatch": "dispatch",
    "collective": "collective",
    "wait": "collective",
    "transfer": "collective",
    "lookup": "lookup",
    "entry": "entry",
    "compile": "compile",
    "forward": "python",
}
# what a region is there to do; the time before the first of these is the price of getting in
_WORK = ("compiled", "op", "dispatch", "collective", "wait", "transfer", "region", "compile")


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a forward's time, in ns of `time.monotonic_ns()`, with the region and range it lies in."""

    forward: int
    kind: str
    start: int
    end: int
    compile_id: str = ""
    name: str = ""


def partition(
    events: Sequence[Event], broken: Collection[str] = (), empty: Collection[str] = ()
) -> list[Segment]:
    """Split each forward of the main thread into segments without overlap or hole.

    Args:
        events: The events that `tidy` gives.
        broken: The compile ids of regions that end in a graph break.
        empty: The compile ids of regions without a graph, which broke before any operation.

    Returns:
        The segments in the order of time, forward by forward.

    The innermost range decides: compiled code and eager operators are `compute`; the own time of an operator in which a
    tensor subclass waits, and dressing a result in that subclass, is `dispatch`; collectives and waiting for them are
    `collective`, also inside compiled code; cache lookups with their guard checks are `lookup`; Dynamo and Inductor at
    work are `compile`. A region's own time before its graph runs, and after it where no break follows, is `entry`: what
    it costs to get in and out. After the graph of a region that broke the eager part
    begins, and that is `python`, like everything else. The end of the compiled wrapper cannot be told from the start of
    the eager part and counts as `python` there.
    """
    children: dict[int, list[int]] = {}
    for i, event in enumerate(events):
        if event.thread == "main":
            children.setdefault(event.parent, []).append(i)
    pieces: list[Segment] = []

    def put(event: Event, kind: str, start: int, end: int, forward: int) -> None:
        if end <= start:
            return
        name = event.name if kind in ("compute", "collective", "compile") else ""
        if pieces:
            last = pieces[-1]
            alike = (last.kind, last.compile_id, last.name, last.forward, last.end)
            if alike == (kind, event.compile_id, name, forward, start):
                pieces[-1] = Segment(forward, kind, last.start, end, last.compile_id, name)
                return
        pieces.append(Segment(forward, kind, start, end, event.compile_id, name))

    def walk(index: int, forward: int) -> None:
        event = events[index]
        inside = children.get(index, [])
        own = _region_kinds(event, [events[i] for i in inside], broken, empty)
        at = event.start
        for gap, child in enumerate(inside):
            entering = gap > 0 and events[inside[gap - 1]].kind == "lookup" and events[child].kind == "region"
            if entering:  # the step from a lookup that found code into that code
                put(events[child], "entry", at, events[child].start, forward)
            else:
                put(event, own[gap], at, events[child].start, forward)
            walk(child, forward)
            at = events[child].end
        put(event, own[-1], at, event.end, forward)

    for i, event in enumerate(events):
        if event.kind == "forward" and event.thread == "main" and event.forward >= 0:
            walk(i, event.forward)
    return pieces


def _region_kinds(
    event: Event, inside: Sequence[Event], broken: Collection[str], empty: Collection[str]
) -> list[str]:
    """The kind of an event's own time before, between and after its children."""
    if event.kind != "region":
        return [_OWN[event.kind]] * (len(inside) + 1)
    if event.compile_id in empty:
        return ["python"] * (len(inside) + 1)
    work = [i for i, child in enumerate(inside) if child.kind in _WORK]
    kinds = []
    for gap in range(len(inside) + 1):
        if not work or gap <= work[0]:
            kinds.append("entry")
        elif gap <= work[-1]:
            kinds.append("python")
        else:
            # past the last thing it does: leaving, unless an eager rest of the frame may still be running
            eager_rest = event.compile_id in broken and inside[work[-1]].kind != "region"
            kinds.append("python" if eager_rest else "entry")
    return kinds
