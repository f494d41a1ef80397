"""A second opinion on races: the same program, told to torch's own CUDA sanitizer (CSAN) event by event.

CSAN's engine is a Python object that compares vector clocks. It runs without a GPU when it is fed by hand. On a GPU,
torch tells it about every allocation and every free, and at a free CSAN forgets who used the block. So it finds no race
between two users of a block that has changed hands: it misses the cross-stream free. Fed without allocations and frees,
which torch never does, the same engine finds that race as well.
"""

from __future__ import annotations

from typing import Any

from course.shared.streams import ops
from course.shared.streams.program import Program
from course.shared.streams.simulator import Simulation
from labkit import torch_compat

__all__ = ["sanitizer_races"]


def sanitizer_races(program: Program, *, frees: bool = True) -> list[tuple[int, int, str]]:
    """The races that CSAN finds in a program.

    Source: torch/cuda/_sanitizer.py, EventHandler, and the callbacks that CUDASanitizerDispatchMode registers.

    Args:
        program: the stream program of one rank.
        frees: True feeds CSAN as torch does, with every allocation and free. False leaves them out, and tells it
            instead what the allocator itself waits for; so fed, CSAN keeps the history of a block that changes hands.

    Returns:
        A tuple for each race: first op, second op, and what the second does ('READ' or 'WRITE'). Ops count from 0.

    Raises:
        UnsupportedTorch: this torch has no such engine.

    >>> program = Program("missing wait", streams="side")
    >>> program.kernel("produce", 4, writes="x")
    >>> program.kernel("consume", 2, on="side", reads="x")
    >>> sanitizer_races(program)
    [(0, 1, 'READ')]
    """
    return _Fed(Simulation(program), frees).races


class _Fed:
    def __init__(self, done: Simulation, frees: bool) -> None:
        self.memory, self.frees = done.memory, frees
        self.kernels = {node.index: node for node in done.kernels}
        self.engine = torch_compat.cuda_sanitizer()
        self.streams = {name: i for i, name in enumerate(done.program.streams)}
        self.numbers: dict[Any, int] = {}
        self.owner: dict[str, str] = {}
        self.users: dict[str, list[str]] = {}
        self.block: dict[str, int] = {}  # buffer -> its memory, by the number that CSAN knows
        self.guards: dict[int, list[int]] = {}  # free -> the events that guard the block
        self.races: list[tuple[int, int, str]] = []
        for stream in self.streams.values():
            self.engine._handle_stream_creation(stream)
        for index, op in enumerate(done.program):
            self._feed(index, op)

    def _number(self, *key: Any) -> int:
        return self.numbers.setdefault(key, 1 + len(self.numbers))

    def _feed(self, index: int, op: ops.Op) -> None:
        engine, streams = self.engine, self.streams
        if isinstance(op, ops.Kernel):
            node = self.kernels[index]
            reads, writes = (
                {self._number("block", b) for b, _ in given} for given in (node.reads, node.writes)
            )
            said = {pointer: [op.name] for pointer in reads | writes}
            errors = engine._handle_kernel_launch(streams[op.stream], reads, writes, set(), str(index), said)
            for error in errors:
                now, before = error.current_access, error.previous_access
                self.races.append((int(before.operator), index, now.type.name))
        elif isinstance(op, ops.Record):
            engine._handle_event_record(self._number("event", op.event), streams[op.stream])
        elif isinstance(op, ops.Wait):
            engine._handle_event_wait(self._number("event", op.event), streams[op.stream])
        elif isinstance(op, ops.WaitStream):
            own = self._number("wait_stream", index)
            engine._handle_event_record(own, streams[op.other])
            engine._handle_event_wait(own, streams[op.stream])
        elif isinstance(op, ops.Synchronize):
            if op.what == "event":
                engine._handle_event_synchronization(self._number("event", op.name))
            elif op.what == "stream":
                engine._handle_stream_synchronization(streams[op.name])
            else:
                engine._handle_device_synchronization()
        elif isinstance(op, ops.Alloc):
            self.owner[op.buffer], self.users[op.buffer] = op.stream, []
            if self.frees:
                self.block[op.buffer] = self._number("block", self.memory.given_out[index])
                engine._handle_memory_allocation(self.block[op.buffer])
                return
            for event in self.guards.get(self.memory.again.get(index, -1), ()):
                engine._handle_event_synchronization(event)  # the allocator found it finished
        elif isinstance(op, ops.RecordStream):
            if op.stream != self.owner[op.buffer]:
                self.users[op.buffer].append(op.stream)
        elif isinstance(op, ops.Free):
            if self.frees:
                engine._handle_memory_deallocation(self.block.pop(op.buffer))
                return
            for stream in dict.fromkeys(self.users.pop(op.buffer)):
                event = self._number("guard", index, stream)
                engine._handle_event_record(event, streams[stream])
                self.guards.setdefault(index, []).append(event)
