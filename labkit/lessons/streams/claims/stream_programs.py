"""What events order, by torch's own vector clocks, and what overlaps."""

from __future__ import annotations

import re
import time

import torch
import torch.distributed as dist

from labkit.graphs import record
from labkit.lessons.shared.streams import Program
from labkit.lessons.streams.sanitizer import sanitizer_races
from labkit.study.checks import SIMULATED, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol, no_compile_caches


@probe
def clocks(bench: Bench) -> Seen:
    """Races that torch's CUDA sanitizer finds in a simulated program of two streams: without an event, and with one."""
    found = {}
    for name, event in (("without an event", False), ("with an event", True)):
        program = Program(name, streams="side")
        program.kernel("produce", 1, writes="x")
        if event:
            program.record("made")
            program.wait("made", "side")
        program.kernel("consume", 1, on="side", reads="x")
        found[name] = len(sanitizer_races(program))
    return {"races": found}


@judging(clocks, word=SIMULATED)
def events_order_streams(seen: Seen) -> Result:
    """Two streams that share a tensor race without an event and do not with one (simulated)."""
    races = seen["races"]
    return verdict(
        races["without an event"] > 0 and races["with an event"] == 0,
        "simulated: "
        + ", ".join(f"{count} race{'s' * (count != 1)} {name}" for name, count in races.items())
        + ", by the clocks of torch's CUDA sanitizer",
    )


LATE_S = 0.2  # so much later than rank 0 the other rank calls its all-reduce


@probe
def order(bench: Bench) -> Seen:
    """Of an all-reduce whose result is needed last: Inductor's calls, and when work without it starts."""
    return bench.run(_order)[0]


def _order() -> Seen:
    started: list[float] = []

    @torch.library.custom_op("labkit::work", mutates_args=())
    def work(x: torch.Tensor) -> torch.Tensor:
        started.append(time.perf_counter())
        return x + 1

    work.register_fake(torch.empty_like)

    def beside(g, a):
        y = funcol.all_reduce(g @ g, "sum", dist.group.WORLD)  # of a product: nothing is compiled in C++
        x = work(a)
        for _ in range(3):
            x = torch.mm(x, a)
        return y, x

    g, a, starts = torch.ones(32, 32), torch.eye(64), Seen()
    dynamo_reset()
    with torch.no_grad(), no_compile_caches(), record(stages=True) as rec:
        compiled = torch.compile(beside)
        compiled(g, a)
    with torch.no_grad():
        for name, run in (("compiled", compiled), ("eager", beside)):
            starts[name] = []
            for _ in range(3):
                dist.barrier()
                called = time.perf_counter()
                if dist.get_rank():
                    time.sleep(LATE_S)
                right = (run(g, a)[0] + 0 == 32 * dist.get_world_size()).all()
                starts[name].append(started[-1] - called if right else None)
    text = rec.graphs.iloc[-1]["inductor_code"]
    body = text[text.index("def call(") :]
    found = re.findall(r"(all_reduce_?|wait_tensor|labkit\.work|kernels\.mm)(?=\.default\(|\()", body)
    return {
        "calls": [name.rpartition(".")[2].rstrip("_") for name in found],
        "starts_s": starts,
    }


@judging(order)
def the_wait_follows_at_once(seen: Seen) -> Result:
    """Compiled, work that needs no functional collective's result waits for a late peer; in eager it does not."""
    calls, starts = seen["calls"], seen["starts_s"]
    behind = calls[calls.index("all_reduce") + 1 :] if "all_reduce" in calls else []
    ok = behind[:1] == ["wait_tensor"] and {"work", "mm"} <= {*behind}
    if None in starts["compiled"] + starts["eager"]:
        return verdict(False, "the sum is wrong")
    first, last = min(starts["compiled"]), max(starts["eager"])
    return verdict(
        ok and first > LATE_S / 2 > last,
        f"{', '.join(calls) or 'no calls in the code'}; beside a peer that is {LATE_S:g} s late, work without the "
        f"sum starts after {first:.2f} s compiled, {last:.2f} s in eager",
    )
