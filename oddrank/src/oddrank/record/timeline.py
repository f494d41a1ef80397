"""Tidy events out of raw profiler ranges: the kind of each, the forward it belongs to, the event it lies in.

The names are the profiler's own (torch 2.13): `Torch-Compiled Region: 1/0` and `TorchDynamo Cache Lookup` from
Dynamo's frame evaluation, `Pregraph bytecode` and `AOTDispatcher Runtime Wrapper Prologue` on the way into a region,
`## Call CompiledFxGraph` from Inductor, `c10d::` and `_c10d_functional::` from the collectives. Regions nest: what
follows a graph break is a function of its own, called from inside the region that broke.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oddrank.record import reducer
from oddrank.record.profile import BODY, FORWARD, STEP, RawEvent
from oddrank.record.tables import POINT_TO_POINT

__all__ = ["Event", "collective_op", "marked", "point_to_point", "tidy"]

REGION = "Torch-Compiled Region: "
LOOKUP = "TorchDynamo Cache Lookup"
ENTRY = ("Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue")
COMPILED = "## Call CompiledFxGraph"
BACKWARD = "CompiledFunctionBackward"
COMPILING = ("dynamo", " (dynamo_timed)")
MARKS = (FORWARD, STEP)

_COLLECTIVE = re.compile(r"^(c10d|_?c10d_functional|_c10d_functional_autograd|shm)::?(\w+)$")
_BACKEND = re.compile(r"^(gloo|nccl|mpi|ucc|xccl):(\w+)$")
_OP = re.compile(r"^(?!autograd::|profiler::|torch::)\w+::[\w.]+$")
# a collective of one rank that divides has a kernel of another name; a copy within the device moves nothing
_DEVICE_TRANSFER = re.compile(r"nccl|oneRank|^Memcpy (?:HtoD|DtoH|PtoP)", re.IGNORECASE)
_GPU_WAIT = re.compile(r"cuda(?:Device|Stream|Event)Synchronize$")
_COMPILE_ID = re.compile(r"compile_id=(\S+)$")

# kinds that hide what runs inside them: the aten calls of a compiled graph, the c10d call of a functional collective
_OPAQUE = {
    "op": {"op", "entry"},
    "compiled": {"op", "compiled", "entry"},
    "collective": {"op", "collective", "wait", "transfer", "entry"},
    "wait": {"op", "collective", "wait", "transfer", "entry"},
    "transfer": {"op", "collective", "wait", "transfer", "entry"},
    "dispatch": {"op", "entry"},
    "lookup": {"op", "entry"},
    "entry": {"op", "entry"},
}


@dataclass(slots=True)
class Event:
    """One tidy event.

    Args:
        kind: forward, region, compiled, lookup, entry, compile, op, collective, wait, transfer or kernel.
        name: The profiler's name for it.
        start: When it began, in ns of `time.monotonic_ns()`.
        end: When it ended.
        thread: A readable name of its thread or stream: 'main', 'autograd', 'gloo 2', 'stream 7'.
        depth: How many events of its thread it lies in.
        forward: The number of the marked forward or step it belongs to, or -1.
        compile_id: The id of the compile whose code it belongs to, or ''.
        parent: The index of the event it lies in, or -1.
        shapes: The shapes of its input tensors such as '4x8, 8x8', where shapes were recorded.
        compiled: Of a collective, whether it runs as a part of compiled code.
        spot: Of a collective, the file, line and function that called it.
    """

    kind: str
    name: str
    start: int
    end: int
    thread: str
    depth: int
    forward: int = -1
    compile_id: str = ""
    parent: int = -1
    shapes: str = ""
    compiled: bool = False
    spot: tuple[str, int, str] = ("", 0, "")


def collective_op(name: str) -> str:
    """Return the operation that an event's name stands for, the same for its eager, functional and shm spelling.

    >>> {collective_op(name) for name in ("c10d::allreduce_", "_c10d_functional::all_reduce_", "shm:all_reduce")}
    {'all_reduce'}
    """
    op = name.rsplit(":", 1)[-1].strip("_")
    return _SPELLING.get(op, op)


def point_to_point(name: str) -> bool:
    """Whether an event is a message between two ranks, in which no other rank of the group takes part.

    >>> point_to_point("c10d::recv_"), point_to_point("c10d::broadcast_")
    (True, False)
    """
    return collective_op(name) in POINT_TO_POINT


def marked(names: Iterable[str]) -> str:
    """Return what was marked among these events' names: 'step' or 'forward'; 'forward' where nothing was.

    >>> marked(["aten::mm", "oddrank.step"]), marked(["aten::mm"])
    ('step', 'forward')
    """
    return "step" if STEP in set(names) else "forward"


_SPELLING = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "allgather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
}


def classify(name: str, on_main: bool = True, is_async: bool = False) -> str:
    """Return the kind of a host range, as in `Event`.

    Args:
        name: The profiler's name for it.
        on_main: Whether it ran on the thread that was recorded.
        is_async: Whether it is an asynchronous range, which belongs to no thread's stack.

    Returns:
        The kind, or '' for a range that is left out.

    >>> classify("c10d::allreduce_"), classify("gloo:all_reduce", on_main=False), classify("aten::mm")
    ('collective', 'transfer', 'op')
    """
    if name.startswith(REGION):
        return "region"
    if name == LOOKUP:
        return "lookup"
    if name in ENTRY:
        return "entry"
    if name.startswith(COMPILED):
        return "compiled"
    if name == COMPILING[0] or name.endswith(COMPILING[1]):
        return "compile"
    if name in (BODY, *MARKS):
        return "forward"
    if name == reducer.WAIT:
        return "wait"
    if _GPU_WAIT.match(name):  # the device is at work meanwhile
        return "op"
    if _BACKEND.match(name):
        return "transfer" if is_async or not on_main else "collective"
    if match := _COLLECTIVE.match(name):
        if match[2] == "wait_tensor":
            return "wait"
        if match[2].startswith("_wrap"):  # an eager tensor dressed for autograd: no communication
            return "dispatch"
        return "transfer" if is_async or (match[1] == "shm" and not on_main) else "collective"
    return "op" if _OP.match(name) else ""


def tidy(raw: Iterable[RawEvent]) -> list[Event]:
    """Classify raw ranges, nest them, and assign each to its forward.

    Args:
        raw: The events of a profile, or of a `RegionListener`.

    Returns:
        The events thread by thread, the main thread first, each thread in the order of start; [] without the mark that
        `record()` puts around its block.

    The main thread is the one that carries the record's marks. Without a mark around a forward, everything that was
    recorded is forward 0; with marks, what ran outside them has forward -1. Collectives are counted once: of several
    nested ranges of one call the outermost stays. Whatever runs inside a compiled graph is part of it, except for
    collectives and waits. What a GPU does belongs to the forward that launched it, however late it starts. A blocking
    collective reaches to the end of its transfer: the range that torch gives it ends when the transfer is queued, and
    the waiting that follows has none. DDP's waiting for its gradients gets a range, see `oddrank.record.reducer`.
    """
    host: dict[int, list[RawEvent]] = {}
    device: list[RawEvent] = []
    floating: list[RawEvent] = []
    for event in raw:
        if event.stream >= 0:
            device.append(event)
        elif event.is_async:
            floating.append(event)
        else:
            host.setdefault(event.thread, []).append(event)
    main = next((t for t, events in host.items() if any(e.name == BODY for e in events)), None)
    if main is None:
        return []
    # torch puts a call to CUDA that no operator made on the thread that ends the profile: gloo's waits, too
    system = next(e.system for e in host[main] if e.name == BODY)
    host[main] = [e for e in host[main] if e.system == system or not _GPU_WAIT.match(e.name)]
    waits, floating = reducer.waits(host[main], floating)
    host[main] = [*host[main], *waits]
    names = _thread_names(host, floating, main)
    marks = _mark_ranges(host[main])
    found: list[Event] = []
    for thread in sorted(host, key=lambda t: (t != main, t)):
        found += _nest_thread(
            host[thread], names[thread], thread == main, len(found), drop_body=len(marks) > 0
        )
    for event in sorted(floating, key=lambda e: e.start):
        if event.name.startswith("nccl:"):  # as long as its launch: the transfer is the kernel
            continue
        if classify(event.name, on_main=False, is_async=True) == "transfer":
            found.append(Event("transfer", event.name, event.start, event.end, names[event.thread], 0))
    _extend_over_transfers(found, receives=not device)
    host_start = {e.launch: e.start for events in host.values() for e in events if e.launch}
    starts = [event.start for event in found]
    for event in sorted(device, key=lambda e: e.start):
        kind = "transfer" if _DEVICE_TRANSFER.search(event.name) else "kernel"
        found.append(Event(kind, event.name, event.start, event.end, f"stream {event.stream}", 0))
        starts.append(host_start.get(event.launch, event.start))
    _assign_forwards(found, starts, marks or [_body_range(host[main])])
    return found


def _body_range(events: Sequence[RawEvent]) -> tuple[int, int]:
    return next((e.start, e.end) for e in events if e.name == BODY)


def _mark_ranges(events: Sequence[RawEvent]) -> list[tuple[int, int]]:
    return sorted((e.start, e.end) for e in events if e.name in MARKS)


def _thread_names(host: dict[int, list[RawEvent]], floating: list[RawEvent], main: int) -> dict[int, str]:
    """A readable name for every thread: what it does, and a number where several do the same."""
    seen: Counter[str] = Counter()
    names = {main: "main"}
    threads: dict[int, list[str]] = {t: [e.name for e in events] for t, events in host.items()}
    for event in floating:
        threads.setdefault(event.thread, []).append(event.name)
    for thread in sorted(threads):
        if thread == main:
            continue
        backend = next((m[1] for n in threads[thread] if (m := _BACKEND.match(n))), "")
        autograd = any(n.startswith("autograd::") for n in threads[thread])
        role = backend or ("autograd" if autograd else "thread")
        seen[role] += 1
        names[thread] = role if seen[role] == 1 else f"{role} {seen[role]}"
    return names


def _nest_thread(
    raw: list[RawEvent], thread: str, on_main: bool, offset: int, drop_body: bool
) -> list[Event]:
    """One thread's ranges as a tree of the events that matter, found by their times."""
    found: list[Event] = []
    open_: list[int] = []  # indices in `found`, outermost first
    backwards = [(e.start, e.end) for e in raw if e.name == BACKWARD]
    for event in sorted(raw, key=lambda e: (e.start, -e.end)):
        while open_ and found[open_[-1]].end <= event.start:
            open_.pop()
        inside = found[open_[-1]] if open_ else None
        kind = classify(event.name, on_main)
        compiling = next((found[i] for i in open_ if found[i].kind == "compile"), None)
        if compiling is not None:
            # fake tensors and autotuning run real operators while compiling; they are not the program's
            if not compiling.compile_id and (match := _COMPILE_ID.search(event.name)):
                compiling.compile_id = match[1]
            continue
        if not kind or (drop_body and event.name == BODY):
            continue
        if inside is not None and inside.kind == "op" and kind == "wait":
            # an operator that waits was given an asynchronous result: the tensor subclass handles it in Python
            inside.kind = "dispatch"
        waited = inside is not None and inside.kind == "dispatch" and found[-1].kind == "wait"
        if inside is not None and kind in _OPAQUE.get(inside.kind, ()) and not waited:
            continue
        end = min(event.end, inside.end) if inside else event.end
        new = Event(kind, event.name, event.start, max(end, event.start), thread, len(open_))
        new.shapes = event.shapes
        new.compiled = kind == "collective" and any(b <= event.start < e for b, e in backwards)
        if inside is not None:
            new.parent = open_[-1] + offset
            new.compile_id = inside.compile_id
        if kind == "region":
            new.compile_id = event.name.removeprefix(REGION)
        open_.append(len(found))
        found.append(new)
    _identify_lookups(found)
    return found


def _identify_lookups(events: list[Event]) -> None:
    """A lookup that finds code is followed by that code's region: give it the region's id."""
    for before, after in zip(events, events[1:], strict=False):
        if before.kind == "lookup":
            hit = after.kind == "region" and after.parent == before.parent
            before.compile_id = after.compile_id if hit else ""


def _extend_over_transfers(events: list[Event], receives: bool = True) -> None:
    """Extend each blocking collective over its transfer, where its thread did nothing else until that had ended.

    A call with `async_op=True` goes on to other work; should it only run Python meanwhile, it looks like waiting here.
    Of a receive gloo shows no transfer: with `receives` it reaches to whatever its thread does next.
    """
    calls = [i for i, e in enumerate(events) if e.kind == "collective" and e.name.startswith("c10d::")]
    taken: set[int] = set()
    for transfer in events:
        if transfer.kind != "transfer" or transfer.depth or transfer.thread == "main":
            continue
        before = [i for i in calls if i not in taken and events[i].start <= transfer.start]
        if not before:
            continue
        call = events[before[-1]]
        taken.add(before[-1])
        if call.end < transfer.end <= _end_of_wait(events, before[-1], transfer.end):
            call.end = transfer.end
    for i in calls if receives else ():
        if collective_op(events[i].name) == "recv":
            events[i].end = max(events[i].end, _end_of_wait(events, i, events[i].end))


def _end_of_wait(events: list[Event], i: int, otherwise: int) -> int:
    """When the thread of event `i` does something else, or what it lies in ends."""
    ends = [e.start for e in events[i + 1 : i + 2] if e.thread == events[i].thread]
    ends += [events[events[i].parent].end] if events[i].parent >= 0 else []
    return min(ends, default=otherwise)


def _assign_forwards(events: list[Event], starts: list[int], forwards: list[tuple[int, int]]) -> None:
    """Give every event the forward it starts in, by `starts`. What another thread starts in a forward belongs to it."""
    begins = [start for start, _ in forwards]
    for event, start in zip(events, starts, strict=True):
        i = bisect.bisect_right(begins, start) - 1
        event.forward = i if i >= 0 and start <= forwards[i][1] else -1
