"""What is handed from stream to stream on a GPU: memory that is used again, microbatches. Needs GPUs."""

from __future__ import annotations

import os
import uuid

import torch
import torch.distributed as dist

from labkit.lessons.shared.streams.cuda import cycles_per_ms
from labkit.ranks import here
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import cuda_sleep, default_store
from labkit.trace.profiler import Profile

BUSY_MS, FORWARD_MS = 20.0, 5.0
MICROBATCHES = 4
ELEMENTS = 1 << 22  # of a microbatch's message: 16 MiB, well under a forward even over PCIe


@probe
def memory(bench: Bench) -> Seen:
    """A tensor freed while another stream still reads it, with the host waiting first and without."""
    return bench.run(_memory, ranks=1, device="cuda")[0]


def _memory() -> Seen:
    caching = (
        torch.cuda.get_allocator_backend() == "native" and "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ
    )
    busy, side = int(BUSY_MS * cycles_per_ms()), torch.cuda.Stream()

    def read(synchronize: bool) -> Seen:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        x, y = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
        where = x.data_ptr()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            cuda_sleep(busy)
            y.copy_(x)
        if synchronize:
            side.synchronize()
        del x
        z = torch.full((1 << 20,), 7.0, device="cuda")  # on the default stream, which waits for nothing
        torch.cuda.synchronize()
        return {"same_memory": z.data_ptr() == where, "read": float(y[0])}

    return {"caching": caching, "synchronized": read(True), "not synchronized": read(False)}


@judging(memory)
def freed_memory_is_used_again(seen: Seen) -> Result:
    """A tensor's memory is given to the next one while another stream still reads it, which reads the wrong value."""
    caching, seen = seen["caching"], seen["not synchronized"]
    if not caching:
        return cannot_tell("torch's own caching allocator", "it is switched off here")
    return verdict(
        seen["same_memory"] and seen["read"] != 1.0,
        f"the same memory: {seen['same_memory']}; the other stream read {seen['read']:g} where 1 had been written",
    )


@judging(memory)
def synchronizing_first_is_safe(seen: Seen) -> Result:
    """Where the host has waited for the other stream first, it has read the right value; else it has not."""
    first, not_first = seen["synchronized"], seen["not synchronized"]
    if not (seen["caching"] and first["same_memory"]):
        return cannot_tell("an allocator that uses the memory again", "the next tensor got other memory")
    said = f"read {first['read']:g} behind a synchronize, {not_first['read']:g} without one"
    return verdict(first["read"] == 1.0 != not_first["read"], f"{said}; the next tensor got the same memory")


@probe
def microbatches(bench: Bench) -> Seen:
    """Microbatches, each a kernel and an all-reduce of what it wrote: by torch's profiler, and whether it is right."""
    return {"ranks": list(bench.on_gpus(_microbatches))}


def _microbatches() -> Seen:
    me, size, busy = dist.get_rank(), dist.get_world_size(), int(FORWARD_MS * cycles_per_ms())
    batches = [torch.zeros(ELEMENTS, device=here().device) for _ in range(MICROBATCHES)]

    def step() -> None:
        works = []
        for i, batch in enumerate(batches):
            cuda_sleep(busy)  # the forward of a microbatch
            batch.fill_(me + i + 1.0)
            works.append(dist.all_reduce(batch, async_op=True))
        for work in works:
            work.wait()

    store, names = default_store(), [f"labkit microbatches {uuid.uuid4()}"]
    dist.broadcast_object_list(names, 0)
    # the first one for nothing: a profiler's first start takes a while, on each rank its own
    for number in (0, 1):
        for batch in batches:
            batch.zero_()
        torch.cuda.synchronize()
        profile = Profile()
        profile.start()
        # meet without a kernel of NCCL's, or it would be counted
        torch.cuda.synchronize()
        store.set(f"{names[0]} {number} {me}", "1")
        store.wait([f"{names[0]} {number} {rank}" for rank in range(size)])
        step()
        torch.cuda.synchronize()
        found = profile.stop()
    spans = sorted((event for event in found if event.stream >= 0), key=lambda span: span.start)
    expected = [size * (size + 1) / 2 + size * i for i in range(MICROBATCHES)]
    kernels = {"communication": "nccl", "write": "fillfunctor", "forward": "spin"}
    return {
        "right": [float(batch[-1]) for batch in batches] == expected,
        "streams": {
            kind: sorted({span.stream for span in spans if word in span.name.lower()})
            for kind, word in kernels.items()
        },
        **{
            kind: [[span.start / 1e6, span.end / 1e6] for span in spans if word in span.name.lower()]
            for kind, word in kernels.items()
        },
    }


def _complete(rank: Seen) -> bool:
    return all(len(rank[kind]) == MICROBATCHES for kind in ("communication", "write", "forward"))


@judging(microbatches)
def communication_beside_the_next_forward(seen: Seen) -> Result:
    """Each microbatch's communication runs beside the forward of the next one."""
    beside = []
    for rank in seen["ranks"]:
        pairs = zip(rank["communication"], rank["forward"][1:], strict=False)
        beside += [min(c[1], f[1]) > max(c[0], f[0]) for c, f in pairs]
    complete = all(map(_complete, seen["ranks"]))
    return verdict(complete and all(beside), f"{sum(beside)} of {len(beside)} beside the next forward")


@judging(microbatches)
def communication_starts_behind_its_own(seen: Seen) -> Result:
    """On a stream of its own each microbatch's communication starts when its computation ended; the sums are right."""
    behind = []
    for rank in seen["ranks"]:
        pairs = zip(rank["communication"], rank["write"], strict=False)
        behind += [c[0] >= w[1] for c, w in pairs]
    right = all(rank["right"] for rank in seen["ranks"])
    complete = all(map(_complete, seen["ranks"]))
    # on one stream the order would need no event
    own = all(not {*r["streams"]["communication"]} & {*r["streams"]["write"]} for r in seen["ranks"])
    said = f"{sum(behind)} of {len(behind)} start behind their own computation; right: {right}; "
    return verdict(complete and right and all(behind) and own, said + f"on a stream of their own: {own}")
