"""What runs side by side on a GPU: kernels, copies, communication, compiled streams. Needs GPUs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.streams.cuda import cycles_per_ms
from labkit.lessons.shared.timed import timed, timing_result
from labkit.ranks import here
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import cuda_sleep, dynamo_reset, has_stream_graphs

BUSY_MS = 20.0
COPIED = 1 << 28  # bytes, from pinned memory: about 10 ms over PCIe 4
ROUNDS, CALLS, CHAIN = 30, 20, 8
SMALL = 1 << 14  # elements that fill a fraction of a GPU
SPARE = 0.5  # of the shorter one, hidden: more than noise leaves


@probe
def side_by_side(bench: Bench) -> Seen:
    """Two kernels on two streams; a copy beside a kernel; where there are two GPUs, an all-reduce beside a kernel."""
    kernels = bench.run(_kernels, ranks=1, device="cuda")[0]
    ranks = bench.on_gpus(_hidden)
    return {"kernels": kernels, "hidden": list(ranks)}


def _kernels() -> Seen:
    """How many ms two kernels of the same length ran at the same time, on two streams and on one."""
    busy, default = int(BUSY_MS * cycles_per_ms()), torch.cuda.current_stream()
    found, each = {}, []
    for name, other in (("two streams", torch.cuda.Stream()), ("one stream", default)):
        for _ in range(2):  # the second time counts
            torch.cuda.synchronize()
            origin = torch.cuda.Event(enable_timing=True)
            origin.record()
            spans = []
            for stream in (default, other):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                with torch.cuda.stream(stream):
                    start.record()
                    cuda_sleep(busy)
                    end.record()
                spans.append((start, end))
            torch.cuda.synchronize()
        times = [[origin.elapsed_time(event) for event in span] for span in spans]
        found[name] = max(min(end for _, end in times) - max(start for start, _ in times), 0.0)
        each.append(
            min(end - start for start, end in times)
        )  # and not what was asked for: a GPU's clock moves
    return {"together_ms": found, "each_ms": min(each)}


def _hidden() -> Seen:
    """In ms: a kernel alone, a copy alone, an all-reduce alone (of more than one rank), and each beside the kernel."""
    device, busy = here().device, int(BUSY_MS * cycles_per_ms())
    side = torch.cuda.Stream()
    source = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
    target, x = torch.empty(COPIED, dtype=torch.uint8, device=device), torch.ones(COPIED // 4, device=device)

    def copy() -> None:
        with torch.cuda.stream(side):
            target.copy_(source, non_blocking=True)

    times = [1]

    def communicate() -> None:
        for _ in range(times[0]):
            dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)

    alone = {"copy": copy} | ({"communication": communicate} if dist.get_world_size() > 1 else {})
    if dist.get_world_size() > 1:
        # half of the kernel's time, however fast the link is; the same number on every rank
        wanted = torch.tensor([BUSY_MS / 2 / _median_ms(communicate)], device=device)
        dist.all_reduce(wanted, dist.ReduceOp.MAX)
        times[0] = max(1, round(float(wanted)))
    found: Seen = {"kernel": _median_ms(lambda: cuda_sleep(busy))}
    for name, other in alone.items():

        def both(other: Callable[[], Any] = other) -> None:
            other()
            cuda_sleep(busy)

        found[name], found[f"{name} beside"] = _median_ms(other), _median_ms(both)
    return found


def _median_ms(work: Callable[[], Any], rounds: int = 7) -> float:
    """Milliseconds from the first launch until the GPU is idle, the median of some rounds behind one for nothing."""
    taken = []
    for _ in range(rounds + 1):
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken[1:])


def _share(one: Seen, name: str) -> float:
    """How much of the shorter of the two was hidden behind the other."""
    return (one["kernel"] + one[name] - one[f"{name} beside"]) / min(one["kernel"], one[name])


@judging(side_by_side)
def kernels_run_together(seen: Seen) -> Result:
    """Two kernels run at the same time on two streams, and one after the other on one."""
    together, each = seen["kernels"]["together_ms"], seen["kernels"]["each_ms"]
    return verdict(
        together["two streams"] > each / 2 > together["one stream"],
        ", ".join(f"{ms:.1f} of {each:.0f} ms together on {name}" for name, ms in together.items()),
    )


@judging(side_by_side)
def copies_and_communication_hide(seen: Seen) -> Result:
    """A copy beside a kernel, and an all-reduce beside a kernel, take less than the two in sequence."""
    names = [name for name in ("copy", "communication") if name in seen["hidden"][0]]
    shares = {name: min(_share(one, name) for one in seen["hidden"]) for name in names}
    said = (
        ", ".join(f"{share:.0%} of the {name}" for name, share in shares.items()) + " hidden behind a kernel"
    )
    if "communication" not in shares and min(shares.values()) > SPARE:
        return cannot_tell("2 GPUs, for communication", said)
    return verdict(min(shares.values()) > SPARE, said)


@probe
def devices(bench: Bench) -> Seen:
    """A stream of the second GPU that waits for an event of the first one's stream, and one that does not."""
    return bench.run(_devices, ranks=1, device="cuda")[0]


def _devices() -> Seen:
    busy, found, took = int(BUSY_MS * 5 * cycles_per_ms()), {}, BUSY_MS * 5
    other = torch.device("cuda", (torch.cuda.current_device() + 1) % torch.cuda.device_count())
    side, y = torch.cuda.Stream(other), torch.zeros(4, device=other)
    for name in ("with a wait", "without", "with a wait", "without"):  # the second time counts
        done = torch.cuda.Event()
        torch.cuda.synchronize()
        torch.cuda.synchronize(other)
        began = time.perf_counter()
        cuda_sleep(busy)
        done.record()
        with torch.cuda.device(other), torch.cuda.stream(side):
            if name == "with a wait":
                side.wait_event(done)
            y.add_(1)
        side.synchronize()
        found[name] = (time.perf_counter() - began) * 1e3
        torch.cuda.synchronize()
        took = min(took, (time.perf_counter() - began) * 1e3)
    return {"done_after_ms": found, "busy_ms": took}


@judging(devices)
def streams_wait_across_devices(seen: Seen) -> Result:
    """Work of one GPU starts only when the other GPU's event has come, and at once where it does not wait for it."""
    after, busy = seen["done_after_ms"], seen["busy_ms"]
    return verdict(
        after["with a wait"] >= busy * 0.9 and after["without"] < busy / 2,
        f"beside {busy:.0f} ms of the first GPU's, the second was done after "
        + ", ".join(f"{ms:.1f} ms {name}" for name, ms in after.items()),
    )


@probe
def two_streams_compiled(bench: Bench) -> Seen:
    """Two chains on one small tensor, compiled by Inductor: on one stream, where it may fuse them, and on two."""
    found = bench.run(_two_streams_compiled, ranks=1, device="cuda")[0]
    if not found["samples"]:
        return {"right": found["right"]}
    return timed("cuda · 1 gpu", found["samples"], "two streams", "one stream") | {"right": True}


def _two_streams_compiled() -> Seen:
    if not has_stream_graphs():
        return {"right": None, "samples": {}}

    def chain(x: Any, by: float) -> Any:
        y = x
        for _ in range(CHAIN):
            y = torch.relu(y @ weight * by) + x  # a product each: Inductor makes no one kernel of the chain
        return y

    def one_stream(x: Any, side: Any) -> Any:
        return chain(x, 2.0), chain(x, 3.0)

    def two_streams(x: Any, side: Any) -> Any:
        # by events: torch 2.12 puts no order behind wait_stream
        given, made = torch.Event(), torch.Event()
        given.record()
        with side:
            given.wait()
            b = chain(x, 3.0)
            made.record()
        a = chain(x, 2.0)
        made.wait()
        return a, b

    dynamo_reset()
    side = torch.Stream(device="cuda")
    x = torch.randn(SMALL // 64, 64, device="cuda")
    weight = torch.randn(64, 64, device="cuda") / 64
    compiled = {"one stream": torch.compile(one_stream), "two streams": torch.compile(two_streams)}
    with torch.no_grad():
        expected = one_stream(x, side)
        for _ in range(3):
            for call in compiled.values():
                pairs = list(zip(call(x, side), expected, strict=True))
                torch.cuda.synchronize()
                if not all(torch.allclose(one, right, rtol=1e-3, atol=1e-4) for one, right in pairs):
                    return {"right": False, "samples": {}}
        timed_calls = {name: _timed(call, x, side) for name, call in compiled.items()}
        samples: dict[str, list[float]] = {name: [] for name in timed_calls}
        for i in range(ROUNDS):
            for name in list(timed_calls)[:: 1 if i % 2 else -1]:
                samples[name].append(timed_calls[name]())
    return {"right": True, "samples": {name: tuple(taken) for name, taken in samples.items()}}


def _timed(call: Callable[..., Any], x: Any, side: Any) -> Callable[[], float]:
    """Seconds from the first of `CALLS` calls until the GPU is idle: what the host takes to launch counts as well."""

    def seconds() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call(x, side)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return seconds


@judging(two_streams_compiled)
def two_streams_can_be_faster(seen: Seen) -> Result:
    """Two chains of small kernels are faster on two streams than on one, where Inductor may fuse; launches count."""
    if seen.get("right") is None:
        return cannot_tell("torch 2.12 or newer", "this one does not compile streams")
    if not seen["right"]:
        return verdict(False, "compiled on two streams, the results are not those of eager")
    return timing_result(seen, "faster", "kernels that are small or bound by memory, not these alone")
