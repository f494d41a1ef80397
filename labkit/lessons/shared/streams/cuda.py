"""Runs a stream program on a real GPU: torch.cuda's own streams, events and allocator, timed by CUDA events.

A kernel of the program is one that spins for its duration and then writes its buffers. What the program calls a unit
becomes `ms_per_unit` milliseconds, so the same program can be simulated, run and compared.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from labkit import hardware, torch_compat
from labkit.lessons.shared.streams import ops
from labkit.lessons.shared.streams.ops import DEFAULT, StreamError
from labkit.lessons.shared.streams.program import Program
from labkit.lessons.shared.streams.simulator import simulate
from labkit.lessons.shared.streams.timeline import ARROWS, SPANS, Timeline
from labkit.report import Report, provenance

__all__ = ["cycles_per_ms", "observe", "run_on_cuda"]

MOST_STREAMS = 32  # c10/cuda/CUDAStream.h: a pool, from which streams are taken round robin
ELEMENTS = 1 << 16  # of a buffer, float32, for each unit of its size


def observe(program: Program, recording: str | Path | None = None) -> Timeline:
    """The program on the GPU of this machine, else its recording, else its simulation; the label says which.

    recording: a file that `Timeline.report().save()` wrote. A note says why it was not run.

    >>> program = Program("one kernel")
    >>> program.kernel("k", 2)
    >>> observe(program, recording="no such file").label in ("simulated", "cuda · 1 gpu")
    True
    """
    flags = any(isinstance(op, (ops.Signal, ops.WaitSignal)) for op in program.ops)
    if hardware.gpus() and not flags:
        return run_on_cuda(program)
    why = "a program with flags cannot run on a GPU" if flags else "there is no GPU here"

    if recording is not None and Path(recording).is_file():
        found = Timeline.of_report(Report.load(recording))
        note = f"{why}: this is a recording"
    else:
        found = simulate(program)
        note = f"{why}, and there is no recording: this is simulated, and its durations are the program's own"
    return replace(found, notes=(*found.notes, note))


def run_on_cuda(program: Program, ms_per_unit: float = 1.0) -> Timeline:
    """Run the program on the current GPU and return what ran when, in ms from its first launch, with the label 'cuda'.

    Host times are on the host's clock, which is set to 0 where the GPU was idle: good to some 10 us. The races are
    those of the simulation: a run that comes out right proves nothing. Raises StreamError without a GPU, for a program
    with flags or more streams than torch has, and for an `ms_per_unit` that is not above 0.
    """
    if not ms_per_unit > 0:
        raise StreamError(f"ms_per_unit must be above 0, got {ms_per_unit!r}")
    for i, op in enumerate(program.ops):
        if isinstance(op, (ops.Signal, ops.WaitSignal)):
            raise StreamError(f"{program.where(i)}: a program with flags can only be simulated")
    beside = len(program.streams) - 1  # the default stream is always there
    if beside > MOST_STREAMS:
        raise StreamError(
            f"torch has {MOST_STREAMS} streams beside the default one, and {beside} would share them"
        )
    if not torch.cuda.is_available():
        raise StreamError("there is no CUDA device here: simulate the program instead")
    run = _Run(program, ms_per_unit, cycles_per_ms())
    run.warm()
    return run.timeline()


def cycles_per_ms() -> float:
    """How many cycles of `cuda_sleep` take a millisecond."""
    cycles, taken = 20_000_000, []
    for _ in range(12):  # the first ones while the clock still rises
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch_compat.cuda_sleep(cycles)
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end))
    return cycles / min(taken[-3:])


def _used(op: ops.Op) -> tuple[str, ...]:
    return (*op.reads, *op.writes) if isinstance(op, ops.Kernel) else ()


class _Run:
    """One run of a program on the GPU."""

    def __init__(self, program: Program, ms_per_unit: float, cycles_per_ms: float) -> None:
        self.program, self.ms, self.cycles = program, ms_per_unit, cycles_per_ms

    def warm(self) -> None:
        """Once without looking: the first launch of a kernel loads it."""
        self._go()

    def timeline(self) -> Timeline:
        """Once more, timed."""
        origin = self._go()
        rows = [
            (0, op.stream, op.name, op.kind, start, start, end, index, "")
            for index, op, *events in self.kernels
            for start, end in [tuple(origin.elapsed_time(event) for event in events)]
        ]
        rows += [
            (0, "host", name, kind, start, start, end, index, "")
            for name, kind, start, end, index in self.host
        ]
        found = simulate(self.program)
        return Timeline(
            self.program.name,
            "cuda · 1 gpu",
            "ms",
            pd.DataFrame(rows, columns=list(SPANS)),
            pd.DataFrame(columns=list(ARROWS)),
            None,
            found.races,
            found.notes,
            provenance=provenance(ms_per_unit=self.ms, unit="ms"),
        )

    def _go(self) -> Any:
        self.kernels: list[tuple[int, ops.Kernel, Any, Any]] = []
        self.host: list[tuple[str, str, float, float, int]] = []
        self.streams: dict[str, Any] = {
            name: torch.cuda.Stream() for name in self.program.streams if name != DEFAULT
        }
        self.streams[DEFAULT] = torch.cuda.current_stream()
        self.events: dict[str, Any] = {}
        touched = {name for op in self.program.ops for name in _used(op)}
        first: dict[str, ops.Op] = {}
        for op in self.program.ops:
            for name in (op.buffer,) if isinstance(op, ops.Alloc) else _used(op):
                first.setdefault(name, op)
        given = {name for name, op in first.items() if isinstance(op, ops.Alloc)}
        self.buffers = {name: torch.zeros(ELEMENTS, device="cuda") for name in sorted(touched - given)}
        torch.cuda.synchronize()
        origin = torch.cuda.Event(enable_timing=True)
        origin.record()
        origin.synchronize()
        self.zero = time.perf_counter()
        for index, op in enumerate(self.program.ops):
            self._do(index, op)
        torch.cuda.synchronize()
        self.buffers.clear()
        return origin

    def _now(self) -> float:
        return (time.perf_counter() - self.zero) * 1e3

    def _do(self, index: int, op: ops.Op) -> None:
        if isinstance(op, ops.Kernel):
            self._launch(index, op)
        elif isinstance(op, ops.Record):
            self.events.setdefault(op.event, torch.cuda.Event()).record(self.streams[op.stream])
        elif isinstance(op, ops.Wait):
            # an event that was never recorded is waited for like any other: CUDA makes nothing of it
            self.streams[op.stream].wait_event(self.events.setdefault(op.event, torch.cuda.Event()))
        elif isinstance(op, ops.WaitStream):
            self.streams[op.stream].wait_stream(self.streams[op.other])
        elif isinstance(op, (ops.Synchronize, ops.HostWork)):
            start = self._now()
            self._hold(op)
            kind = "work" if isinstance(op, ops.HostWork) else "synchronize"
            self.host.append((str(op) if kind != "work" else op.name, kind, start, self._now(), index))
        elif isinstance(op, ops.Alloc):
            with torch.cuda.stream(self.streams[op.stream]):
                self.buffers[op.buffer] = torch.empty(int(ELEMENTS * op.size), device="cuda")
        elif isinstance(op, ops.RecordStream):
            self.buffers[op.buffer].record_stream(self.streams[op.stream])
        elif isinstance(op, ops.Free):
            del self.buffers[op.buffer]

    def _hold(self, op: ops.Synchronize | ops.HostWork) -> None:
        if isinstance(op, ops.HostWork):
            time.sleep(op.duration * self.ms / 1e3)
        elif op.what == "device":
            torch.cuda.synchronize()
        elif op.what == "stream":
            self.streams[op.name].synchronize()
        elif op.name in self.events:
            self.events[op.name].synchronize()

    def _launch(self, index: int, op: ops.Kernel) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.streams[op.stream]):
            start.record()
            torch_compat.cuda_sleep(int(op.duration * self.ms * self.cycles))
            for name in op.writes:
                self.buffers[name].fill_(float(index))
            end.record()
        self.kernels.append((index, op, start, end))
