"""What NCCL puts into the streams of a GPU, and what a barrier does to them: by torch's profiler. Needs GPUs."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.streams.cuda import cycles_per_ms
from labkit.ranks import here
from labkit.study.checks import HOLDS, Bench, Result, Seen, judging, probe, thread_names, verdict
from labkit.torch_compat import cuda_sleep, default_store, funcol
from labkit.trace.profiler import Profile

ELEMENTS = 1 << 24  # 64 MiB of float32: long enough to be seen beside a kernel
BUSY_MS, LATE_MS = 20.0, 300.0
WAYS = ("async_op, waited", "async_op, waited late", "async_op=False", "functional")
ASYNC, UNWAITED, SYNC, FUNCTIONAL = WAYS
NANOSECOND_MS = 1e-6


@probe
def queues(bench: Bench) -> Seen:
    """An all-reduce in four ways between two kernels, on one GPU a rank: which stream ran what, and when."""
    return {"ranks": list(bench.on_gpus(_queues))}


def _queues() -> Seen:
    size, device = dist.get_world_size(), here().device
    x, a = torch.zeros(ELEMENTS, device=device), torch.ones(1 << 10, device=device)
    busy = int(BUSY_MS * cycles_per_ms())

    def reduced(way: str) -> tuple[Any, Any]:
        """The result, and what is still to be waited for."""
        if way == FUNCTIONAL:
            return funcol.all_reduce(x, "avg", dist.group.WORLD), None
        # an average is work even for a group of one; a sum would be nothing there
        work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=way != SYNC)
        if way == ASYNC:
            work.wait()
        return x, work if way == UNWAITED else None

    found: Seen = {"ways": {}}
    for way in (*WAYS, *WAYS):  # first all of them for nothing: NCCL loads its kernels
        x.zero_()
        dist.barrier()
        torch.cuda.synchronize()
        profile = Profile()
        profile.start()
        began = time.perf_counter()
        cuda_sleep(busy)
        x.fill_(dist.get_rank() + 1.0)
        result, left = reduced(way)
        if way == FUNCTIONAL:
            result = result + 0
        a.cos_()
        returned = time.perf_counter() - began
        if left is not None:
            left.wait()
        torch.cuda.synchronize()
        spans = [event for event in profile.stop() if event.stream >= 0]
        found["ways"][way] = {
            "host_ms": returned * 1e3,
            "right": bool((result == (size + 1) / 2).all()),
            **_told(spans),
        }
    return found | {"threads": thread_names()}


def _told(spans: list[Any]) -> dict[str, Any]:
    """The spans of interest: stream, start and end in ms from the first."""
    zero = min((span.start for span in spans), default=0)
    kinds = {"fill": ("FillFunctor",), "after": ("cos",), "collective": ("nccl", "oneRank", "Memcpy")}
    found: dict[str, Any] = {}
    for kind, words in kinds.items():
        mine = [s for s in spans if any(word.lower() in s.name.lower() for word in words)]
        if mine:
            first, last = min(mine, key=lambda s: s.start), max(mine, key=lambda s: s.end)
            found[kind] = {
                "stream": last.stream,
                "start": (first.start - zero) * NANOSECOND_MS,
                "end": (last.end - zero) * NANOSECOND_MS,
            }
    return found


def _streams(seen: Seen, way: str) -> tuple[set[int], set[int]]:
    """The streams of the collectives, and those of the kernels around them, over all ranks."""
    mine = [rank["ways"][way] for rank in seen["ranks"]]
    return {one["collective"]["stream"] for one in mine}, {one["after"]["stream"] for one in mine}


@judging(queues)
def a_stream_of_its_own(seen: Seen) -> Result:
    """An asynchronous all-reduce runs on another stream than the kernels around it."""
    own, compute = _streams(seen, ASYNC)
    return verdict(not own & compute, f"async_op=True: stream {_list(own)}, kernels on {_list(compute)}")


@judging(queues)
def all_reduce_goes_there(seen: Seen) -> Result:
    """All-reduces run on that stream in every way of calling them."""
    there = {way: not set.intersection(*_streams(seen, way)) for way in (SYNC, ASYNC, FUNCTIONAL)}
    return verdict(
        all(there.values()),
        "; ".join(f"{way}: {'its own' if own else 'the current'} stream" for way, own in there.items()),
    )


@judging(queues)
def the_host_goes_on(seen: Seen) -> Result:
    """An all-reduce on its own stream waits for a long kernel, and is right; the host is not held up by its wait()."""
    mine = [rank["ways"][ASYNC] for rank in seen["ranks"]]
    slowest, right = max(one["host_ms"] for one in mine), all(one["right"] for one in mine)
    gpu, ordered = max(one["collective"]["end"] for one in mine), it_waits_for_the_data(seen)
    return verdict(
        right and slowest < BUSY_MS / 2 and ordered.status == HOLDS,
        f"the host was through after {slowest:.1f} ms, the GPU after {gpu:.0f} ms; {ordered.measured}",
    )


@judging(queues)
def it_waits_for_the_data(seen: Seen) -> Result:
    """On its own stream, the collective starts when the kernel that writes its input has ended."""
    own, compute = _streams(seen, ASYNC)
    mine = [rank["ways"][ASYNC] for rank in seen["ranks"]]
    behind = all(one["collective"]["start"] >= one["fill"]["end"] for one in mine)
    right = all(one["right"] for one in mine)
    return verdict(
        behind and right and not own & compute,
        f"starts behind the kernel that writes: {behind}; right: {right}; streams {_list(own)} and {_list(compute)}",
    )


@judging(queues)
def computation_waits_for_it(seen: Seen) -> Result:
    """After wait() the next kernel starts behind the collective; without, it does not wait."""
    behind = {
        way: all(
            rank["ways"][way]["after"]["start"] >= rank["ways"][way]["collective"]["end"]
            for rank in seen["ranks"]
        )
        for way in (ASYNC, UNWAITED)
    }
    return verdict(
        behind[ASYNC] and not behind[UNWAITED],
        "the next kernel starts behind the collective "
        + ", ".join(f"{'after wait()' if way == ASYNC else 'before'}: {so}" for way, so in behind.items()),
    )


@judging(queues)
def threads_streams_and_events(seen: Seen) -> Result:
    """The group has threads of its own, a stream of its own, and orders the two streams without the host."""
    named = sorted({name for rank in seen["ranks"] for name in rank["threads"] if "nccl" in name.lower()})
    own, compute = _streams(seen, ASYNC)
    ordered = it_waits_for_the_data(seen).status == HOLDS
    return verdict(
        bool(named) and not own & compute and ordered,
        f"threads {', '.join(named) or 'not found'}; stream {_list(own)} beside {_list(compute)}; in order: {ordered}",
    )


@probe
def barriers(bench: Bench) -> Seen:
    """Barriers of the group and over the store while the last rank's GPU is busy: what they wait for."""
    return {"ranks": list(bench.on_gpus(_barriers, ranks=2))}


def _barriers() -> Seen:
    me, size, store = dist.get_rank(), dist.get_world_size(), default_store()
    names = [f"labkit barrier {time.time_ns()}"]
    dist.broadcast_object_list(names, 0)
    busy = int(LATE_MS * cycles_per_ms())

    def over_the_store() -> None:
        store.set(f"{names[0]} {me}", "1")
        store.wait([f"{names[0]} {rank}" for rank in range(size)])

    found: Seen = {}
    for kind, barrier in (("group", dist.barrier), ("store", over_the_store)):
        dist.barrier()
        torch.cuda.synchronize()
        if me == size - 1:
            cuda_sleep(busy)
        began = time.perf_counter()
        barrier()
        torch.cuda.current_stream().synchronize()
        found[kind] = {"ms": (time.perf_counter() - began) * 1e3, "late": me == size - 1}
        torch.cuda.synchronize()
    return found


@judging(barriers)
def a_barrier_waits_for_gpus(seen: Seen) -> Result:
    """Behind a barrier of the group the work of all ranks' GPUs is done; behind one over the store it is not."""
    others = [rank for rank in seen["ranks"] if not rank["group"]["late"]]
    waited = {kind: min(rank[kind]["ms"] for rank in others) for kind in ("group", "store")}
    return verdict(
        waited["group"] >= LATE_MS / 2 > waited["store"],
        f"while another rank's GPU is busy for {LATE_MS:.0f} ms: {waited['group']:.0f} ms in the group's barrier, "
        f"{waited['store']:.0f} ms in the store's",
    )


def _list(streams: set[int]) -> str:
    return ", ".join(map(str, sorted(streams)))
