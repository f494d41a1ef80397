"""A stream program as plain tuples, as the race check of lesson 06 takes it, and its races by reachability.

The tuples: ("launch", stream, reads, writes), ("record", event, stream), ("wait", event, stream), ("synchronize",
stream), ("record_stream", buffer, stream) and ("free", buffer, owner). A free counts as a write that the owner's stream
does at once, because the allocator may give the memory to the owner's next tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.shared.streams import ops
from course.shared.streams.program import Program

__all__ = ["plain", "races_of"]


def plain(program: Program) -> list[tuple[Any, ...]]:
    """Write a program as tuples, up to its last launch: what is freed later, the caller has to guard.

    >>> program = Program("hand over", streams="side")
    >>> program.kernel("produce", 4, writes="x")
    >>> program.wait_stream("default", on="side")
    >>> program.kernel("consume", 2, on="side", reads="x")
    >>> plain(program)  # doctest: +NORMALIZE_WHITESPACE
    [('launch', 'default', (), ('x',)), ('record', 'event 2', 'default'),
     ('wait', 'event 2', 'side'), ('launch', 'side', ('x',), ())]
    """
    owner: dict[str, str] = {}
    made: list[tuple[Any, ...]] = []
    for number, op in enumerate(program, 1):
        if isinstance(op, ops.Kernel):
            made.append(("launch", op.stream, op.reads, op.writes))
        elif isinstance(op, ops.Record):
            made.append(("record", op.event, op.stream))
        elif isinstance(op, ops.Wait):
            made.append(("wait", op.event, op.stream))
        elif isinstance(op, ops.WaitStream):
            made += [("record", f"event {number}", op.other), ("wait", f"event {number}", op.stream)]
        elif isinstance(op, ops.Synchronize) and op.what == "event":
            made += [("wait", op.name, f"stream {number}"), ("synchronize", f"stream {number}")]
        elif isinstance(op, ops.Synchronize):
            made += [("synchronize", stream) for stream in ([op.name] if op.name else program.streams)]
        elif isinstance(op, ops.Alloc):
            owner[op.buffer] = op.stream
        elif isinstance(op, ops.RecordStream):
            made.append(("record_stream", op.buffer, op.stream))
        elif isinstance(op, ops.Free):
            made.append(("free", op.buffer, owner[op.buffer]))
    while made and made[-1][0] != "launch":
        made.pop()
    return made


def races_of(program: Sequence[tuple[Any, ...]]) -> set[tuple[int, int]]:
    """The pairs of ops that use one buffer, one of them to write, with no path of edges from the first to the second.

    This follows edges and keeps no clocks, so that it is a second opinion on a check that keeps them.

    >>> races_of([("launch", "a", (), ("x",)), ("launch", "b", ("x",), ())])
    {(0, 1)}
    """
    before: list[set[int]] = []  # of each op: the ops that have ended when it begins
    ended: dict[str, set[int]] = {}  # of each stream: what has ended when its next op begins
    marks: dict[str, set[int]] = {}
    host: set[int] = set()
    told: dict[str, list[str]] = {}
    for i, (word, *rest) in enumerate(program):
        before.append(set(host))
        if word == "launch":
            before[i] |= ended.get(rest[0], set())
            ended[rest[0]] = before[i] | {i}
        elif word == "record":
            marks[rest[0]] = set(ended.get(rest[1], set()))
        elif word == "wait":
            ended[rest[1]] = ended.get(rest[1], set()) | marks.get(rest[0], set())
        elif word == "synchronize":
            host |= ended.get(rest[0], set())
        elif word == "record_stream":
            told.setdefault(rest[0], []).append(rest[1])
        elif word == "free":
            for stream in (rest[1], *told.pop(rest[0], ())):
                before[i] |= ended.get(stream, set())
    uses = {i: _uses(op) for i, op in enumerate(program) if op[0] in ("launch", "free")}
    return {
        (i, j)
        for j, (reads, writes) in uses.items()
        for i, (earlier_reads, earlier_writes) in uses.items()
        if i < j
        and i not in before[j]
        and (writes & (earlier_reads | earlier_writes) or reads & earlier_writes)
    }


def _uses(op: tuple[Any, ...]) -> tuple[set[str], set[str]]:
    return (set(op[2]), set(op[3])) if op[0] == "launch" else (set(), {op[1]})
