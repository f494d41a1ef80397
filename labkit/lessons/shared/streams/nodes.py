"""What a simulation is made of: pieces of work on streams, steps of a host, and memory given out and taken back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Clock", "HostStep", "Memory", "Node", "join"]

Clock = dict[
    tuple[int, str], int
]  # for each (rank, stream): the number of its last kernel known to be finished


def join(into: Clock, other: Clock) -> None:
    """Know what the other knows as well."""
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


@dataclass(slots=True, eq=False)
class HostStep:
    """The host at work, launching, or standing still until `target` has finished."""

    name: str
    kind: str  # 'work', 'launch' or 'synchronize'
    start: float
    end: float
    index: int
    before: HostStep | None = None
    target: Node | None = None


@dataclass(slots=True, eq=False)
class Node:
    """A kernel, or a mark of no length that an event or a wait leaves in its stream.

    `ready` is when the stream came to it, `start` when its work began (later only for a collective that waits for its
    peers). `why` is what it had to wait for last: a word, and a Node or a HostStep.
    """

    rank: int
    index: int
    name: str
    kind: str
    stream: str
    duration: float
    issued: float
    host: HostStep | None
    known: Clock  # by the host when it issued this
    number: int = 0  # of kernels, over all ranks, in the order of issue; 0 for marks
    after: list[tuple[str, Node]] = field(default_factory=list)
    behind: Node | None = None  # on the same engine: in time, but not in what may be relied upon
    missing: int = 0
    waiting: list[Any] = field(default_factory=list)
    ready: float = 0.0
    start: float = 0.0
    end: float = -1.0
    why: tuple[str, Any] = ("host", None)
    clock: Clock = field(default_factory=dict)
    reads: tuple[tuple[str, str], ...] = ()  # (block, buffer)
    writes: tuple[tuple[str, str], ...] = ()

    @property
    def done(self) -> bool:
        """Whether it is known when this ends."""
        return self.end >= 0


@dataclass(slots=True)
class Memory:
    """The caching allocator: freed memory goes to the pool of the stream that it was allocated for, by size."""

    block: dict[str, str] = field(default_factory=dict)  # buffer -> the memory that it has
    size: dict[str, float] = field(default_factory=dict)  # block -> size
    owner: dict[str, str] = field(default_factory=dict)  # block -> stream
    users: dict[str, list[str]] = field(default_factory=dict)  # buffer -> streams told by record_stream
    pool: dict[tuple[str, float], list[tuple[str, list[Node]]]] = field(default_factory=dict)
    freed: dict[str, tuple[str, int]] = field(
        default_factory=dict
    )  # block -> (buffer, op) that last freed it
    again: dict[int, int] = field(default_factory=dict)  # alloc -> the free whose block it was given
    given_out: dict[int, str] = field(default_factory=dict)  # alloc -> the block that it was given
    given: list[tuple[float, float, float]] = field(
        default_factory=list
    )  # host time; in use, reserved after it
    reserved: float = 0.0
    used: float = 0.0

    def alloc(self, buffer: str, stream: str, size: float, now: float, index: int) -> list[Node]:
        """Give out a block; returns the nodes that the allocator found finished before it gave it out again."""
        self.used += size
        self.users[buffer] = []
        free = self.pool.get((stream, size), [])
        for i, (block, guards) in enumerate(free):
            if all(guard.done and guard.end <= now for guard in guards):
                del free[i]
                self.block[buffer] = self.given_out[index] = block
                self.again[index] = self.freed[block][1]
                self.given.append((now, self.used, self.reserved))
                return guards
        block = f"memory {len(self.size) + 1}"
        self.size[block], self.owner[block], self.block[buffer] = size, stream, block
        self.given_out[index] = block
        self.reserved += size
        self.given.append((now, self.used, self.reserved))
        return []

    def free(self, buffer: str, index: int, now: float, tails: dict[str, Node]) -> None:
        """Take a block back: at once, or once what `record_stream` named has come so far."""
        block = self.block.pop(buffer)
        size, owner = self.size[block], self.owner[block]
        guards = [tails[stream] for stream in self.users.pop(buffer) if stream in tails]
        self.pool.setdefault((owner, size), []).append((block, guards))
        self.freed[block] = (buffer, index)
        self.used -= size
        self.given.append((now, self.used, self.reserved))
