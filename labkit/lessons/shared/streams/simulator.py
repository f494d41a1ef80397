"""Runs stream programs on paper: when everything starts and ends, and what may be relied upon.

R1  A launch is asynchronous: it costs the host `launch`, and the kernel starts no earlier than it was issued.
R2  A stream is a queue: an op starts when the one before it has ended.
R3  A record captures what is queued so far; recorded again, the event means something else to later waits only.
R4  A wait takes the latest record at the moment of the call, holds up its stream and never the host, and is nothing
    at all where the event was never recorded.
R5  A synchronize stops the host, and so orders everything that is issued after it.
R6  Kernels on one engine (a copy engine, a link) run in turn. That is no order that a program may rely upon.
R7  A free gives memory back at host time, to the pool of the stream that owns it. `record_stream` keeps it there until
    that stream has done what it has; a record on the side stream and a wait on the owner are the other way.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.lessons.shared.streams import ops
from labkit.lessons.shared.streams.deadlock import Standing
from labkit.lessons.shared.streams.hazards import Accesses
from labkit.lessons.shared.streams.nodes import Clock, HostStep, Memory, Node, join
from labkit.lessons.shared.streams.ops import StreamError
from labkit.lessons.shared.streams.program import Program
from labkit.lessons.shared.streams.results import timeline
from labkit.lessons.shared.streams.timeline import Timeline

__all__ = ["Deadlock", "Simulation", "simulate"]

FIRST = {"host": 0, "engine": 1, "stream": 2, "event": 3, "peer": 4}


class Deadlock(StreamError):
    """A stream program that comes to a stop: the message names the ops that wait for each other."""


def simulate(
    program: Program | Sequence[Program] | Mapping[int, Program], *, launch: float = 0.0
) -> Timeline:
    """Run a program, or one program for each rank, by the rules R1 to R7 and return the Timeline.

    launch: what issuing a kernel costs the host, in the program's unit. Collectives of several ranks meet by name, the
    first with the first, the second with the second. Raises Deadlock naming the ops that wait for each other, and
    StreamError for ranks that do not count in the same unit.

    >>> program = Program("hand over", streams="side")
    >>> program.kernel("produce", 4, writes="x")
    >>> program.kernel("consume", 2, on="side", reads="x")
    >>> found = simulate(program)
    >>> found.makespan, len(found.races)
    (4.0, 1)
    """
    programs = _by_rank(program)
    if not isinstance(launch, (int, float)) or not 0 <= launch < float("inf"):
        raise StreamError(f"launch must be a number of 0 or more, got {launch!r}")
    return timeline(Simulation(programs, float(launch)).run())


def _by_rank(program: Any) -> dict[int, Program]:
    if isinstance(program, Program):
        return {0: program}
    found = dict(program) if isinstance(program, Mapping) else dict(enumerate(program))
    if not found or not all(isinstance(one, Program) for one in found.values()):
        raise StreamError("simulate takes a Program, or one for each rank")
    units = {one.unit for one in found.values()}
    if len(units) > 1:
        raise StreamError(f"the ranks do not count in the same unit: {', '.join(sorted(units))}")
    return found


class _Host:
    """One rank's host: how far it has come, and what it has issued."""

    def __init__(self, rank: int, program: Program) -> None:
        self.rank, self.program = rank, program
        self.at, self.clock = 0, 0.0
        self.step: HostStep | None = None
        self.steps: list[HostStep] = []
        self.known: Clock = {}
        self.tails: dict[str, Node] = {}
        self.engines: dict[str, Node] = {}
        self.events: dict[str, Node] = {}
        self.memory = Memory()
        self.waits_for: list[Node] = []
        self.captured: dict[int, int | None] = {}  # wait -> the record that it took

    def spend(self, name: str, kind: str, until: float, index: int, target: Node | None = None) -> None:
        self.step = HostStep(name, kind, self.clock, until, index, self.step, target)
        self.steps.append(self.step)
        self.clock = until


class Simulation:
    """A simulation under way, and what it knows at its end; `simulate` is the way to ask for one."""

    def __init__(self, programs: dict[int, Program], launch: float = 0.0) -> None:
        self.hosts = {rank: _Host(rank, program) for rank, program in programs.items()}
        self.launch = launch
        self.nodes: list[Node] = []
        self.accesses = Accesses()
        self.kernels = 0
        self.meetings: dict[tuple[str, int], list[Node]] = {}
        self.came: dict[tuple[int, str], int] = {}
        self.queue = [(0.0, rank) for rank in programs]

    def run(self) -> Simulation:
        """Issue and time everything. Raises Deadlock where something never ends."""
        heapq.heapify(self.queue)
        while self.queue:
            host = self.hosts[heapq.heappop(self.queue)[1]]
            self._advance(host)
        if stuck := [node for node in self.nodes if not node.done]:
            raise Deadlock(Standing(self).say(stuck))
        return self

    def _advance(self, host: _Host) -> None:
        """Issue ops until the program ends, the host stands, or another rank's host is behind."""
        while host.at < len(host.program.ops):
            if self.queue and self.queue[0][0] < host.clock:
                heapq.heappush(self.queue, (host.clock, host.rank))
                return
            op = host.program.ops[host.at]
            getattr(self, f"_{type(op).__name__.lower()}")(host, op)
            host.at += 1
            if host.waits_for:
                return  # `_finish` puts it back

    # --- ops ---

    def _kernel(self, host: _Host, op: ops.Kernel) -> None:
        if self.launch:
            host.spend("launch", "launch", host.clock + self.launch, host.at)
        node = self._node(host, op.stream, op.name, op.kind, float(op.duration))
        block = host.memory.block
        node.reads = tuple((block.get(b, b), b) for b in dict.fromkeys(op.reads) if b not in op.writes)
        node.writes = tuple((block.get(b, b), b) for b in dict.fromkeys(op.writes))
        self.kernels += 1
        node.number = self.kernels
        if op.engine:
            node.behind = host.engines.get(op.engine)
            host.engines[op.engine] = node
        self._issue(host, node)

    def _hostwork(self, host: _Host, op: ops.HostWork) -> None:
        host.spend(op.name, "work", host.clock + op.duration, host.at)

    def _record(self, host: _Host, op: ops.Record) -> None:
        host.events[op.event] = self._issue(host, self._node(host, op.stream, op.event, "record"))

    def _wait(self, host: _Host, op: ops.Wait) -> None:
        taken = host.events.get(op.event)
        host.captured[host.at] = taken.index if taken else None
        if taken:
            self._mark(host, op.stream, op.event, "wait", ("event", taken))

    def _waitstream(self, host: _Host, op: ops.WaitStream) -> None:
        if op.other in host.tails:
            self._mark(host, op.stream, op.other, "wait", ("event", host.tails[op.other]))

    def _synchronize(self, host: _Host, op: ops.Synchronize) -> None:
        if op.what == "event":
            taken = host.events.get(op.name)
            host.captured[host.at] = taken.index if taken else None
            targets = [taken] if taken else []
        elif op.what == "stream":
            targets = [host.tails[op.name]] if op.name in host.tails else []
        else:
            targets = list(host.tails.values())
        host.waits_for = [node for node in targets if not node.done]
        for node in host.waits_for:
            node.waiting.append(host)
        if not host.waits_for:
            self._go_on(host, targets, host.at)

    def _alloc(self, host: _Host, op: ops.Alloc) -> None:
        if guards := host.memory.alloc(op.buffer, op.stream, float(op.size), host.clock, host.at):
            host.known = dict(host.known)
            for guard in guards:
                join(host.known, guard.clock)  # the allocator has asked for these events, and they had come

    def _free(self, host: _Host, op: ops.Free) -> None:
        host.memory.free(op.buffer, host.at, host.clock, host.tails)

    def _recordstream(self, host: _Host, op: ops.RecordStream) -> None:
        if op.stream not in host.memory.users[op.buffer]:
            host.memory.users[op.buffer].append(op.stream)

    # --- nodes ---

    def _node(self, host: _Host, stream: str, name: str, kind: str, duration: float = 0.0) -> Node:
        # what the host knows changes at a synchronize only, where it becomes a new dict
        return Node(host.rank, host.at, name, kind, stream, duration, host.clock, host.step, host.known)

    def _mark(self, host: _Host, stream: str, name: str, kind: str, *after: tuple[str, Node]) -> None:
        node = self._node(host, stream, name, kind)
        node.after += after
        self._issue(host, node)

    def _issue(self, host: _Host, node: Node) -> Node:
        if before := host.tails.get(node.stream):
            node.after.append(("stream", before))
        host.tails[node.stream] = node
        self.nodes.append(node)
        for other in (*(other for _, other in node.after), *((node.behind,) if node.behind else ())):
            if not other.done:
                node.missing += 1
                other.waiting.append(node)
        if not node.missing:
            self._resolve(node)
        return node

    def _release(self, node: Node) -> None:
        node.missing -= 1
        if not node.missing:
            self._resolve(node)

    def _resolve(self, first: Node) -> None:
        """Everything before `first` is known; give it its times, and then whatever waited for it alone."""
        ready = [first]
        while ready:
            node = ready.pop()
            self._time(node)
            members = self._meeting(node)
            for member in members:
                member.end = member.start + max(m.duration for m in members)
                self._know(member)
                for waiter in member.waiting:
                    if isinstance(waiter, _Host):
                        self._wake(waiter)
                        continue
                    waiter.missing -= 1
                    if not waiter.missing:
                        ready.append(waiter)

    def _time(self, node: Node) -> None:
        reasons: list[tuple[float, int, str, Any]] = [(node.issued, FIRST["host"], "host", node.host)]
        reasons += [(other.end, FIRST[word], word, other) for word, other in node.after]
        if node.behind:
            reasons.append((node.behind.end, FIRST["engine"], "engine", node.behind))
        time, _, word, cause = max(reasons, key=lambda reason: reason[:2])
        node.ready = node.start = time
        node.why = (word, cause)

    def _meeting(self, node: Node) -> list[Node]:
        """The nodes that end with this one: itself, or all ranks' parts of a collective once the last has come."""
        if node.kind != "collective" or len(self.hosts) == 1:
            return [node]
        turn = self.came[node.rank, node.name] = self.came.get((node.rank, node.name), 0) + 1
        members = self.meetings.setdefault((node.name, turn), [])
        members.append(node)
        if len(members) < len(self.hosts):
            return []
        last = max(members, key=lambda m: m.ready)
        for member in members:
            if member.ready < last.ready:
                member.start, member.why = last.ready, ("peer", last)
        return members

    def _know(self, node: Node) -> None:
        node.clock = dict(node.known)
        for _, other in node.after:
            join(node.clock, other.clock)
        if node.number:
            node.clock[node.rank, node.stream] = node.number
            self.accesses.look_at(node)

    def _wake(self, host: _Host) -> None:
        """One of the nodes that a host stands for has its time; with the last of them the host goes on."""
        if host.waits_for and all(node.done for node in host.waits_for):
            targets, host.waits_for = host.waits_for, []
            op = host.program.ops[host.at - 1]
            if isinstance(op, ops.Synchronize) and op.what == "device":
                targets = list(host.tails.values())
            self._go_on(host, targets, host.at - 1)
            heapq.heappush(self.queue, (host.clock, host.rank))

    def _go_on(self, host: _Host, targets: list[Node], index: int) -> None:
        last = max(targets, key=lambda node: node.end, default=None)
        host.known = dict(host.known)
        for node in targets:
            join(host.known, node.clock)
        name = str(host.program.ops[index])
        host.spend(name, "synchronize", max(host.clock, last.end if last else 0.0), index, last)
