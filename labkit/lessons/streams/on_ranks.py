"""What runs in each rank for communication beside computation: the same two pieces put together in every way."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks import here
from labkit.timing import interleave
from labkit.torch_compat import funcol

COMMUNICATE, COMPUTE = "communication alone", "computation alone"
SEQUENCE, NOW, LATE = "in sequence", "async_op, wait at once", "async_op, wait late"
FUNCOL_NOW, FUNCOL_LATE = "functional, used at once", "functional, used late"
COMPILED = "functional, compiled"
WAYS = (COMMUNICATE, COMPUTE, SEQUENCE, NOW, LATE, FUNCOL_NOW, FUNCOL_LATE, COMPILED)
STEPS, WIDTH = 16, 384  # matrix products of a computation, and their size


def measure(
    cases: dict[str, tuple[float, float]], chosen: list[str], rounds: int, talk: bool
) -> dict[str, Any]:
    """Run on every rank: samples in seconds by case and way, marks of one further run of two ways, if all is right.

    cases: MiB of the all-reduce, and seconds by which the last rank comes late.
    """
    me = here()
    last = me.rank == me.world_size - 1
    found: dict[str, Any] = {"samples": {}, "spans": {}, "right": True}
    with torch.no_grad():
        for case, (mib, late) in cases.items():
            if talk and me.rank == 0:
                print(case, flush=True)
            ways = _Ways(int(mib * 2**18), late if last else 0.0, me)
            timed = {way: ways.all[way] for way in chosen}
            samples = interleave(timed, rounds=rounds, warmup=2, barrier=dist.barrier)
            found["samples"][case] = {way: taken.samples for way, taken in samples.items()}
            found["right"] &= ways.right()
            found["spans"][case] = {}
            for way in (SEQUENCE, LATE):
                dist.barrier()
                found["spans"][case][way] = ways.seen(way)
    return found


class _Ways:
    """The same all-reduce and the same computation, put together in every way."""

    def __init__(self, elements: int, late: float, me: Any) -> None:
        torch.manual_seed(0)
        self.late, self.me = late, me
        self.g = torch.ones(elements, device=me.device)
        self.a = torch.randn(WIDTH, WIDTH, device=me.device) / WIDTH**0.5
        self.marks: list[tuple[str, str, str, float, float]] | None = None
        _define_left()
        self.compiled = torch.compile(self._functional_then_compute)
        self.all: dict[str, Callable[[], Any]] = {
            COMMUNICATE: _in_turn(self._come, self._reduce),
            COMPUTE: self._compute,
            SEQUENCE: _in_turn(self._come, self._reduce, self._compute),
            NOW: _in_turn(self._come, lambda: self._start().wait(), self._compute),
            LATE: self._async,
            FUNCOL_NOW: _in_turn(self._come, lambda: self._functional()[0].item(), self._compute),
            FUNCOL_LATE: self._functional_late,
            COMPILED: _in_turn(self._come, lambda: self.compiled(self.g, self.a)[0][0].item()),
        }

    def right(self) -> bool:
        """Whether all ranks have the sum, whichever way."""
        return all(self._functional()[0].item() == self.me.world_size for _ in range(2))

    def seen(self, way: str) -> list[tuple[str, str, str, float, float]]:
        """One run: (lane, name, kind, start, end) in seconds of a clock that all ranks of a machine share."""
        self.marks = []
        self.all[way]()
        time.sleep(0.002)  # the mark of a finished collective is made on another thread
        marks, self.marks = self.marks, None
        return marks

    def _mark(self, lane: str, name: str, kind: str, start: float) -> None:
        if self.marks is not None:
            self.marks.append((lane, name, kind, start, time.perf_counter()))

    def _come(self) -> None:
        if self.late:
            start = time.perf_counter()
            time.sleep(self.late)
            self._mark("host", "late", "work", start)

    def _compute(self) -> Any:
        start, x = time.perf_counter(), self.a
        for _ in range(STEPS):
            x = torch.mm(x, self.a)
        if x.is_cuda:
            torch.cuda.current_stream().synchronize()  # and not the streams that communicate
        self._mark("main", "matrix products", "compute", start)
        return x

    def _reduce(self) -> None:
        start = time.perf_counter()
        dist.all_reduce(self.g.fill_(1))
        self._arrive()
        self._mark("comm", "all_reduce", "collective", start)

    def _start(self) -> Any:
        start = time.perf_counter()
        work = dist.all_reduce(self.g.fill_(1), async_op=True)
        if self.marks is not None:
            end = functools.partial(self._mark, "comm", "all_reduce", "collective", start)
            if self.me.backend == "nccl":
                _when_done(work, end)
            else:
                work.get_future().then(lambda _: end())
        return work

    def _arrive(self) -> None:
        """Wait for the GPU: there, the end of a collective's `wait` only puts the next kernel behind it."""
        if self.g.is_cuda:
            torch.cuda.synchronize()

    def _async(self) -> None:
        self._come()
        work = self._start()
        self._compute()
        start = time.perf_counter()
        work.wait()
        self._arrive()
        self._mark("main", "wait", "synchronize", start)

    def _functional(self) -> Any:
        return funcol.all_reduce(self.g.fill_(1), "sum", dist.group.WORLD)

    def _functional_late(self) -> None:
        self._come()
        y = self._functional()
        self._compute()
        y[0].item()

    @staticmethod
    def _functional_then_compute(g: Any, a: Any) -> Any:
        # of a copy that the compiler does not look into, like a gradient that an operator left: no C++ is compiled
        y, x = funcol.all_reduce(torch.ops.labkit.left(g), "sum", dist.group.WORLD), a
        for _ in range(STEPS):
            x = torch.mm(x, a)
        return y, x


def _when_done(work: Any, then: Callable[[], None]) -> None:
    """Call `then` on a thread when an NCCL collective's kernel has ended, which its future does not wait for."""
    with torch.cuda.stream(torch.cuda.Stream()):
        work.wait()
        ended = torch.cuda.current_stream().record_event()

    def follow() -> None:
        ended.synchronize()
        then()

    threading.Thread(target=follow, daemon=True).start()


def _define_left() -> None:
    """An operator of ours, labkit::left: a copy of a tensor."""
    if hasattr(torch.ops.labkit, "left"):
        return
    left = torch.library.custom_op(
        "labkit::left", lambda g: g.clone(), mutates_args=(), schema="(Tensor g) -> Tensor"
    )
    left.register_fake(torch.empty_like)


def _in_turn(*steps: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        for step in steps:
            step()

    return run
