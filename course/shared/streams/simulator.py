"""Runs a stream program on paper: when everything starts and ends, and what may be relied upon.

R1  A launch is asynchronous: it costs the host `launch`, and the kernel starts no earlier than it was issued.
R2  A stream is a queue: an op starts when the one before it has ended.
R3  A record captures what is queued so far; recorded again, the event means something else to later waits only.
R4  A wait takes the latest record at the moment of the call, holds up its stream and never the host, and is nothing
    at all where the event was never recorded.
R5  A synchronize stops the host, and so orders everything that is issued after it.
R6  A free gives memory back at host time, to the pool of the stream that owns it. `record_stream` keeps it there until
    that stream has done what it has, and does nothing where that stream is the owner; a record on the side stream and a
    wait on the owner are the other way. What the allocator found done orders all that is issued later, so after a
    `record_stream` races depend on the durations.

A wait can only take what was issued before it, so one pass over the ops in their order times all of them.
"""

from __future__ import annotations

import pandas as pd

from course.shared.streams import ops
from course.shared.streams.hazards import Accesses, Explainer, Race
from course.shared.streams.nodes import Clock, Memory, Node, join
from course.shared.streams.ops import StreamError
from course.shared.streams.program import Program
from course.shared.streams.timeline import ARROWS, SPANS, Timeline
from labkit.report import MODELLED, SIMULATED

__all__ = ["Simulation", "simulate"]


def simulate(program: Program, *, launch: float = 0.0) -> Timeline:
    """Run a program by the rules R1 to R6.

    Args:
        program: what one host issues.
        launch: what issuing a kernel costs the host, in the program's unit.

    Returns:
        The timeline, with the label `simulated`.

    Raises:
        StreamError: this is no program, or `launch` is no number of 0 or more.

    >>> program = Program("hand over", streams="side")
    >>> program.kernel("produce", 4, writes="x")
    >>> program.kernel("consume", 2, on="side", reads="x")
    >>> found = simulate(program)
    >>> found.makespan, len(found.races)
    (4.0, 1)
    """
    done = Simulation(program, launch)
    rows = [(0, n.stream, n.name, n.kind, n.start, n.end) for n in done.kernels]
    rows += [(0, "host", *step) for step in done.host]
    return Timeline(
        program.name,
        SIMULATED if program.unit == "units" else MODELLED,
        program.unit,
        pd.DataFrame(rows, columns=list(SPANS)),
        pd.DataFrame(done.arrows, columns=list(ARROWS)),
        done.races(),
        done.memory.peak,
        done.memory.reserved,
    )


class Simulation:
    """A program that was simulated, and what is known at its end; `simulate` makes a timeline of it.

    kernels: in the order of issue. host: (name, kind, start, end) of each launch and synchronize that took time.
    captured: for each wait the op whose record it took, None for a wait that did nothing. memory: as it ended.
    """

    def __init__(self, program: Program, launch: float = 0.0) -> None:
        if not isinstance(program, Program):
            raise StreamError(
                f"simulate takes a Program, as `capture` makes it of a function, got {program!r}"
            )
        if not isinstance(launch, (int, float)) or not 0 <= launch < float("inf"):
            raise StreamError(f"launch must be a number of 0 or more, got {launch!r}")
        self.program, self.launch = program, float(launch)
        self.now = 0.0  # by the host's clock
        self.known: Clock = {}  # by the host
        self.kernels: list[Node] = []
        self.host: list[tuple[str, str, float, float]] = []
        self.arrows: list[tuple[int, str, float, str, float]] = []
        self.captured: dict[int, int | None] = {}
        self.memory = Memory()
        self._accesses = Accesses()
        self._tails: dict[str, Node] = {}
        self._events: dict[str, Node] = {}
        for index, op in enumerate(program):
            self._issue(index, op)

    def races(self) -> tuple[Race, ...]:
        """What nothing orders, in words."""
        explain = Explainer(self.program, self.captured)
        return tuple(explain.race(found) for found in self._accesses.found)

    def _issue(self, index: int, op: ops.Op) -> None:
        if isinstance(op, ops.Kernel):
            self._kernel(index, op)
        elif isinstance(op, ops.Record):
            self._events[op.event] = self._put(index, op.stream, op.event, "record")
        elif isinstance(op, ops.Wait):
            self._wait(index, op.stream, self._taken(index, op.event))
        elif isinstance(op, ops.WaitStream):
            self._wait(index, op.stream, self._tails.get(op.other))
        elif isinstance(op, ops.Synchronize):
            self._synchronize(index, op)
        elif isinstance(op, ops.Alloc):
            # what guards a block is an event that the allocator has asked for, and it had come
            self._learn(self.memory.alloc(op.buffer, op.stream, float(op.size), self.now, index))
        elif isinstance(op, ops.Free):
            self.memory.free(op.buffer, index, self._tails)
        elif isinstance(op, ops.RecordStream):
            self.memory.record_stream(op.buffer, op.stream)

    def _kernel(self, index: int, op: ops.Kernel) -> None:
        self._spend("launch", "launch", self.now + self.launch)
        node = self._put(index, op.stream, op.name, op.kind, float(op.duration))
        block = self.memory.block
        node.reads = tuple((block.get(b, b), b) for b in dict.fromkeys(op.reads) if b not in op.writes)
        node.writes = tuple((block.get(b, b), b) for b in dict.fromkeys(op.writes))
        self.kernels.append(node)
        node.number = node.clock[op.stream] = len(self.kernels)
        self._accesses.look_at(node)

    def _put(
        self, index: int, stream: str, name: str, kind: str, duration: float = 0.0, after: Node | None = None
    ) -> Node:
        """Put something after what its stream holds so far, and after `after`."""
        before = [node for node in (self._tails.get(stream), after) if node]
        start = max([self.now, *(node.end for node in before)])
        node = Node(index, name, kind, stream, start, start + duration, dict(self.known))
        for other in before:
            join(node.clock, other.clock)
        self._tails[stream] = node
        return node

    def _taken(self, index: int, event: str) -> Node | None:
        """The latest record of an event, for the wait of op `index`."""
        taken = self._events.get(event)
        self.captured[index] = taken.index if taken else None
        return taken

    def _wait(self, index: int, stream: str, taken: Node | None) -> None:
        if taken:
            node = self._put(index, stream, "", "wait", after=taken)
            self.arrows.append((0, taken.stream, taken.end, stream, node.end))

    def _synchronize(self, index: int, op: ops.Synchronize) -> None:
        if op.what == "device":
            targets = list(self._tails.values())
        else:
            one = self._taken(index, op.name) if op.what == "event" else self._tails.get(op.name)
            targets = [one] if one else []
        self._spend(str(op), "synchronize", max([self.now, *(node.end for node in targets)]))
        self._learn(targets)

    def _spend(self, name: str, kind: str, until: float) -> None:
        if until > self.now:
            self.host.append((name, kind, self.now, until))
        self.now = until

    def _learn(self, finished: list[Node]) -> None:
        for node in finished:
            join(self.known, node.clock)
