"""The phases of a first call: one thread's time, cut up by the events that torch's compiler reports of itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from labkit import torch_compat
from labkit.torch_compat import CPU_CHECK

__all__ = ["LOAD", "PHASES", "RUN", "Clock", "phase_of", "phases", "segments"]

LOAD, DYNAMO, AUTOGRAD, INDUCTOR, CHECK, CPP, RUN = (
    "find and load",
    "Dynamo",
    "AOTAutograd",
    "Inductor",
    "CPU instruction check",
    "build and load C++",
    "run, or wait for a peer",
)
PHASES = (LOAD, DYNAMO, AUTOGRAD, INDUCTOR, CHECK, CPP, RUN)
# the beginning of an event's name, and the phase that it is time of; another name is time of what it lies in
NAMES = (
    (LOAD, "inductor_codecache_torch_key CacheBase AOTAutogradCache FxGraphCache TritonBundler PyCodeCache"),
    (CHECK, CPU_CHECK),
    (CPP, "compile_file async_compile.wait CppCodeCache CppWrapperCodeCache"),
    (DYNAMO, "dynamo entire_frame_compile compile_attempt bytecode_tracing build_guards"),
    (AUTOGRAD, "backend_compile create_aot_dispatcher_function aot_collect_metadata"),
    (
        INDUCTOR,
        "compile_fx inductor_compile fx_codegen_and_compile _recursive_ GraphLowering Scheduler code_gen",
    ),
)

Event = tuple[float, str, str, int]
Span = tuple[str, float, float]


def phase_of(name: str, inside: str) -> str:
    """Name the phase of one of torch's events; that of the event around it where the name says nothing.

    What the check of the CPU's instructions compiles is its own time.

    Args:
        name: the event's name.
        inside: the phase of the event around it.

    >>> phase_of("Scheduler.codegen", "Dynamo"), phase_of("gc", "Dynamo"), phase_of("compile_file", CHECK)
    ('Inductor', 'Dynamo', 'CPU instruction check')
    """
    if inside == CHECK:
        return CHECK
    return next((phase for phase, begins in NAMES if name.startswith(tuple(begins.split()))), inside)


def segments(
    events: Sequence[Event], marks: Sequence[tuple[float, str]], end: float, thread: int
) -> list[Span]:
    """Cut one thread's time into phases, none overlapping and no second left out.

    Args:
        events: (seconds, 'B' or 'E', name, thread). Events of other threads are left out: this thread waits for them in
            an event of its own.
        marks: (seconds, phase) from which on time outside of every event counts as that phase; the first is the
            beginning.
        end: the end, in seconds.
        thread: which thread.

    Returns:
        (phase, first second, last second), in order.

    >>> inner = [(2.0, "B", "compile_file", 0), (4.0, "E", "compile_file", 0)]
    >>> segments([(1.0, "B", "dynamo", 0), *inner, (5.0, "E", "dynamo", 0)], [(0.0, "run")], 6.0, thread=0)
    [('run', 0.0, 1.0), ('Dynamo', 1.0, 2.0), ('build and load C++', 2.0, 4.0), ('Dynamo', 4.0, 5.0), ('run', 5.0, 6.0)]
    """
    begin = marks[0][0]
    steps: list[tuple[float, int, str, str]] = [(t, 0, "mark", phase) for t, phase in marks]
    steps += [(t, 1, what, name) for t, what, name, who in events if who == thread and begin <= t <= end]
    steps.sort(key=lambda step: step[:2])  # stable: events of one moment stay in their order
    outside, stack, at = marks[0][1], list[tuple[str, str]](), begin
    found: list[Span] = []

    def until(t: float) -> None:
        nonlocal at
        phase = stack[-1][1] if stack else outside
        if t > at:
            if found and found[-1][0] == phase:
                found[-1] = (phase, found[-1][1], t)
            else:
                found.append((phase, at, t))
            at = t

    for t, _, what, name in steps:
        until(t)
        if what == "mark":
            outside = name
        elif what == "B":
            stack.append((name, phase_of(name, stack[-1][1] if stack else outside)))
        else:
            for i in range(len(stack) - 1, -1, -1):  # an end closes what began inside it as well
                if stack[i][0] == name:
                    del stack[i:]
                    break
    until(end)
    return found


class Clock:
    """What `phases` fills: `spans` are (phase, first second, last second), counted from the beginning of the block."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._marks: list[tuple[float, str]] = []

    def mark(self, phase: str) -> None:
        """From here on, time outside of torch's events is time of this phase."""
        self._marks.append((time.perf_counter(), phase))


@contextlib.contextmanager
def phases(begin: str = LOAD) -> Iterator[Clock]:
    """Measure the phases of what this thread compiles in a block, by torch's own events.

    Args:
        begin: the phase of time outside of torch's events, until `mark` names another.

    >>> with phases() as clock:
    ...     clock.mark(RUN)
    >>> [phase for phase, _, _ in clock.spans]
    ['find and load', 'run, or wait for a peer']
    """
    clock = Clock()
    zero = time.time() - time.perf_counter()  # torch's events carry the time of day
    with torch_compat.compile_events() as events:
        clock.mark(begin)
        yield clock
        end = time.perf_counter()
    first = clock._marks[0][0]
    told = [(t - zero, what, name, thread) for t, what, name, thread in events]
    cut = segments(told, clock._marks, end, threading.get_ident())
    clock.spans = [(phase, a - first, b - first) for phase, a, b in cut]
