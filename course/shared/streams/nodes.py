"""What a simulation is made of: pieces of work on streams, and memory given out and taken back."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Clock", "Memory", "Node", "join"]

Clock = dict[str, int]  # for each stream: the number of its last kernel that is known to be finished


def join(into: Clock, other: Clock) -> None:
    """Know what the other knows as well.

    >>> mine = {"a": 1, "b": 5}
    >>> join(mine, {"a": 3, "b": 2})
    >>> mine
    {'a': 3, 'b': 5}
    """
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


@dataclass(slots=True, eq=False)
class Node:
    """A kernel, or a mark of no length that an event or a wait leaves in its stream.

    `number` counts kernels in the order of issue and is 0 for marks; `clock` is what is finished when this one is.
    """

    index: int
    name: str
    kind: str
    stream: str
    start: float
    end: float
    clock: Clock
    number: int = 0
    reads: tuple[tuple[str, str], ...] = ()  # (block, buffer)
    writes: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Memory:
    """The caching allocator: freed memory goes to the pool of the stream that it was allocated for, by size."""

    block: dict[str, str] = field(default_factory=dict)  # buffer -> the memory that it has
    home: dict[str, tuple[str, float]] = field(default_factory=dict)  # block -> its pool: stream and size
    users: dict[str, list[str]] = field(default_factory=dict)  # buffer -> streams told by record_stream
    pool: dict[tuple[str, float], list[tuple[str, list[Node]]]] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)  # block -> the op that last freed it
    again: dict[int, int] = field(default_factory=dict)  # alloc -> the free whose block it was given
    given_out: dict[int, str] = field(default_factory=dict)  # alloc -> the block that it was given
    used: float = 0.0
    peak: float = 0.0  # the most that was in use at once
    reserved: float = 0.0  # taken from the device, in use or kept for later

    def alloc(self, buffer: str, stream: str, size: float, now: float, index: int) -> list[Node]:
        """Give out a block; returns the nodes that the allocator found finished before it gave it out again."""
        self.used += size
        self.peak = max(self.peak, self.used)
        self.users[buffer] = []
        free = self.pool.get((stream, size), [])
        for i, (block, guards) in enumerate(free):
            if all(guard.end <= now for guard in guards):
                del free[i]
                self.block[buffer] = self.given_out[index] = block
                self.again[index] = self.freed[block]
                return guards
        self.block[buffer] = self.given_out[index] = block = f"memory {len(self.home) + 1}"
        self.home[block] = stream, size
        self.reserved += size
        return []

    def record_stream(self, buffer: str, stream: str) -> None:
        """Note another stream that uses a block. The block's own stream is not noted, as in torch's allocator."""
        if stream not in (self.home[self.block[buffer]][0], *self.users[buffer]):
            self.users[buffer].append(stream)

    def free(self, buffer: str, index: int, tails: dict[str, Node]) -> None:
        """Take a block back: at once, or once what `record_stream` named has come so far."""
        block = self.block.pop(buffer)
        guards = [tails[stream] for stream in self.users.pop(buffer) if stream in tails]
        self.pool.setdefault(self.home[block], []).append((block, guards))
        self.freed[block] = index
        self.used -= self.home[block][1]
