"""How long it takes to simulate 10,000 ops, and to redraw a program of 200.

    python benchmarks/streams.py

Targets: 1 s and 200 ms. The tests hold no clock to them: a shared machine may be busy.
"""

from __future__ import annotations

import random
import statistics
import time

from labkit.lessons.shared.streams import Program, simulate
from labkit.lessons.shared.streams_figures import timeline
from labkit.timing import quantile

ROUNDS = 15


def program(length: int, streams: str, seed: int = 0, apart: bool = False) -> Program:
    """A random program: half kernels, a quarter records, a quarter waits. `apart`: kernels that share no memory."""
    draw, made = random.Random(seed), Program(f"{length} ops", streams=streams)
    for i in range(length):
        kind, stream = draw.random(), draw.choice(made.streams)
        if kind < 0.5:
            reads, writes = (f"b{draw.randrange(50)}",), (f"b{draw.randrange(50)}",)
            if apart:
                reads, writes = (), (f"b{i}",)
            made.kernel(f"k{i}", draw.random(), on=stream, reads=reads, writes=writes)
        elif kind < 0.75:
            made.record(f"e{draw.randrange(20)}", stream)
        else:
            made.wait(f"e{draw.randrange(20)}", stream)
    return made


def timed(name: str, call) -> None:
    call()
    wall, cpu = [], []
    for _ in range(ROUNDS):
        start, busy = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - busy)
    low, high = quantile(wall, 0.1), quantile(wall, 0.9)
    print(
        f"{name}: {statistics.median(wall) * 1e3:.0f} ms ({low * 1e3:.0f}-{high * 1e3:.0f}), "
        f"of CPU {statistics.median(cpu) * 1e3:.0f} ms, n={ROUNDS}"
    )


if __name__ == "__main__":
    large, small = program(10_000, "a b c d"), program(200, "a b c")
    races = len(simulate(large).races)
    timed(f"simulate 10,000 ops, {races} races explained", lambda: simulate(large))
    for what in (small, program(200, "a b c", apart=True)):
        races = len(simulate(what).races)
        timed(
            f"simulate and redraw 200 ops, {races} races",
            lambda what=what: timeline(simulate(what)).png(quick=True),
        )
