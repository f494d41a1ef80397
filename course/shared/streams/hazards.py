"""Races: two accesses to one piece of memory, at least one of them a write, with nothing that orders them.

The accesses are compared by vector clocks, as torch's CUDA sanitizer (CSAN, torch/cuda/_sanitizer.py) does it: a read
against the last write; a write against the reads since then, or where there are none against the last write. Memory
is known by its block and not by its tensor, so that a block that the allocator has given out again is compared with
its former user. CSAN differs there: it forgets a block's history at the free, and so misses a cross-stream free.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

from course.shared.streams.nodes import Node
from course.shared.streams.ops import Free, Record, Synchronize, Wait, WaitStream
from course.shared.streams.program import Program

__all__ = ["Accesses", "CAUSES", "Explainer", "Race"]

READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE = (
    "read after write",
    "write after read",
    "write after write",
)
VERBS = {
    READ_AFTER_WRITE: "may read {0!r} before {1} has written it",
    WRITE_AFTER_READ: "may write {0!r} while {1} still reads it",
    WRITE_AFTER_WRITE: "may write {0!r} before {1} has written it",
}
# the mistake that causes a race, and what to do about it
CAUSES = {
    "missing wait": "record an event after the first op, and let the second one's stream wait for it",
    "record too early": "an event stands for what is queued when it is recorded: record it after the first op",
    "never recorded": "a wait for an event that was never recorded is no wait: record it first",
    "wait before record": "a wait takes the latest record at the moment of the call: record first, then wait",
    "re-recorded": "the wait took the earlier record, and a later one does not reach back: wait after it",
    "wait too late": "a wait holds up what is issued after it: put it before the second op",
    "cross-stream free": (
        "the allocator knows one stream: record_stream, or let the owner wait for the other stream before the free"
    ),
}


@dataclass(frozen=True)
class Race:
    """Two unordered accesses: the ops by number from 0, the mistake by its name in CAUSES, and all of it in words.

    `first` was issued before `second`; `buffer` is how the second op calls the memory, `before` how the first did.
    """

    kind: str
    buffer: str
    before: str
    first: int
    second: int
    cause: str
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return CAUSES[self.cause]


class Accesses:
    """The last accesses to every block of memory; `found` has (kind, block, buffer, buffer before, first, second)."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[str, Node] | None, list[tuple[str, Node]]]] = {}
        self.found: list[tuple[str, str, str, str, Node, Node]] = []

    def look_at(self, node: Node) -> None:
        """Compare a kernel's accesses with those before it, and keep them."""
        for block, buffer in node.reads:
            write, reads = self._last.setdefault(block, (None, []))
            self._check(READ_AFTER_WRITE, block, buffer, write, node)
            reads.append((buffer, node))
        for block, buffer in node.writes:
            write, reads = self._last.get(block, (None, []))
            for read in reads:
                self._check(WRITE_AFTER_READ, block, buffer, read, node)
            if not reads:
                self._check(WRITE_AFTER_WRITE, block, buffer, write, node)
            self._last[block] = ((buffer, node), [])

    def _check(self, kind: str, block: str, buffer: str, before: tuple[str, Node] | None, node: Node) -> None:
        if before and before[1].number > node.clock.get(before[1].stream, 0):
            self.found.append((kind, block, buffer, before[0], before[1], node))


class Explainer:
    """Puts races of one program into words, with the mistake that causes each.

    captured: for each wait the record that it took, None for a wait that did nothing.
    """

    LOOK_BACK = 64  # waits that are looked at for one race: the mistake is near, and programs are long

    def __init__(self, program: Program, captured: Mapping[int, int | None]) -> None:
        self.program, self.captured = program, captured
        self.records: dict[str, list[int]] = {}  # event -> where it is recorded
        self.events: dict[str, set[str]] = {}  # stream -> the events recorded on it
        self.waits: dict[str, list[int]] = {}  # stream -> what could make it wait, and what stops the host
        self.frees: dict[str, list[int]] = {}
        stops = []
        for i, op in enumerate(program.ops):
            if isinstance(op, Record):
                self.records.setdefault(op.event, []).append(i)
                self.events.setdefault(op.stream, set()).add(op.event)
            elif isinstance(op, (Wait, WaitStream)):
                self.waits.setdefault(op.stream, []).append(i)
            elif isinstance(op, Free):
                self.frees.setdefault(op.buffer, []).append(i)
            elif isinstance(op, Synchronize) and op.what == "event":
                stops.append(i)
        self.waits = {s: sorted(self.waits.get(s, []) + stops) for s in program.streams}

    def race(self, found: tuple[str, str, str, str, Node, Node]) -> Race:
        """A race in words."""
        kind, block, buffer, before, one, other = found
        here, there = self.program.where(other.index), self.program.where(one.index)
        freed = self._freed_between(before, one.index, other.index) if block not in (before, buffer) else None
        if freed is not None:
            cause = "cross-stream free"
            giver = self.program.where(freed)
            why = f"it has the memory of {before!r}, which {giver} gave back while {one.stream!r} used it"
        else:
            cause, why = self._cause(one, other)
        text = f"{cause}: {here} {VERBS[kind].format(buffer, there)}: {why}"
        return Race(kind, buffer, before, one.index, other.index, cause, text)

    def _freed_between(self, buffer: str, first: int, second: int) -> int | None:
        frees = self.frees.get(buffer, [])
        at = bisect.bisect_left(frees, second) - 1
        return frees[at] if at >= 0 and frees[at] > first else None

    def _cause(self, one: Node, other: Node) -> tuple[str, str]:
        """Which of the classic mistakes left these two ops unordered."""
        first, second, source, target = one.index, other.index, one.stream, other.stream
        waits, say = self.waits.get(target, []), self.program.where
        at = bisect.bisect_left(waits, second)
        for i in reversed(waits[max(0, at - self.LOOK_BACK) : at]):
            op = self.program.ops[i]
            if isinstance(op, WaitStream):
                if op.other == source and i < first:
                    return "wait before record", f"{say(i)} came before it was queued"
                continue
            event = op.event if isinstance(op, Wait) else op.name  # type: ignore[attr-defined]
            records = self.records.get(event, [])
            if not records:
                return "never recorded", f"{say(i)} does nothing, for {event!r} is never recorded"
            if event not in self.events.get(source, ()):
                continue  # about something else
            took = self.captured.get(i)
            if took is None:
                later = f"{event!r} is recorded later, by {say(records[0])}"
                return "wait before record", f"{say(i)} does nothing, for {later}"
            if took < first and records[-1] > first:
                later = f"not the later one of op {records[-1] + 1}"
                return "re-recorded", f"{say(i)} took the record of op {took + 1}, {later}"
            if took < first:
                early = f"{event!r} was recorded by op {took + 1}, before the first of the two"
                return "record too early", early
        for i in waits[at : at + self.LOOK_BACK]:
            op = self.program.ops[i]
            if (isinstance(op, WaitStream) and op.other == source) or (
                isinstance(op, Wait) and op.event in self.events.get(source, ())
            ):
                return "wait too late", f"{say(i)} comes after it"
        return "missing wait", f"nothing lets {target!r} wait for {source!r}"
