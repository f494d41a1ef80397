"""Two kinds of barrier, what moves which bytes, and several backends at once: four gloo ranks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.sockets import connections, sent_between
from labkit.ranks import shm
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, thread_names, verdict
from labkit.torch_compat import default_store

SETTLE_S = 0.05
LARGE, SMALL = 1 << 22, 1 << 12  # elements: long enough to be still under way, and 16 KiB


@probe
def at_work(bench: Bench) -> Seen:
    """Barriers of both kinds beside an all-reduce that is under way, and the bytes of both on the sockets."""
    found = bench.run(_barriers, ranks=4)
    sent = {
        name: sum(
            sent_between(*({r: seen["sent"][name][i] for r, seen in found.items()} for i in (0, 1))).values()
        )
        for name in found[0]["sent"]
    }
    kept = {key: value for key, value in found[0].items() if key != "sent"}
    return {**kept, "sent": sent, "reduced": SMALL * 4, "ranks": 4}


def _barriers() -> Seen:
    me, store = dist.get_rank(), default_store()
    counted = store
    while isinstance(counted, dist.PrefixStore):
        counted = counted.underlying_store
    size = dist.get_world_size()
    names = [f"check {time.time_ns()}"]
    dist.broadcast_object_list(names, 0)  # ranks are shared between probes: keys of its own
    prefix = names[0]

    def by_store(name: str) -> None:
        if store.add(f"{prefix} {name} count", 1) == size:
            store.set(f"{prefix} {name} go", "1")
        store.wait([f"{prefix} {name} go"])

    x = torch.ones(LARGE)
    pending: dict[str, list[bool]] = {"store": [], "group": []}
    for i in range(3):
        for kind in pending:
            dist.barrier()
            work = dist.all_reduce(x.fill_(1), async_op=True)
            if kind == "store":
                by_store(str(i))
            else:
                dist.barrier()
            pending[kind].append(work.is_completed())
            work.wait()
    found: Seen = {"finished_behind": {kind: all(done) for kind, done in pending.items()}}

    sent = {}
    small = torch.ones(SMALL)
    for name, call in (("barrier", dist.barrier), ("all_reduce", lambda: dist.all_reduce(small))):
        dist.barrier()
        time.sleep(SETTLE_S)
        before, keys = connections(), counted.num_keys()
        call()
        time.sleep(SETTLE_S)
        sent[name] = (before, connections())
        found[f"keys_of_{name}"] = counted.num_keys() - keys
    dist.barrier()

    # the key of a counter is there at 1: who waits for it does not wait for the rest
    if me == 0:
        store.add(f"{prefix} one of four", 1)
        store.wait([f"{prefix} one of four"])
        found["count_at_return"] = store.add(f"{prefix} one of four", 0)
    dist.barrier()
    times = [0.0]
    if me == 0:
        time.sleep(0.3)
        times = [time.perf_counter()]  # one clock for all processes of a machine
        store.set(f"{prefix} open", "1")
    store.wait([f"{prefix} open"])
    released = time.perf_counter()
    dist.broadcast_object_list(times, 0)
    after: list[Any] = [None] * size
    dist.all_gather_object(after, released - times[0])
    found |= {"released_after_s": after, "sent": sent, "cuda_initialized": torch.cuda.is_initialized()}
    return found | {"threads": thread_names()}


@judging(at_work)
def two_mechanisms(seen: Seen) -> Result:
    """A barrier of the group sends bytes between ranks and waits for what is under way; the store's does neither."""
    behind = seen["finished_behind"]
    return verdict(
        behind["group"] and not behind["store"] and seen["sent"]["barrier"] > 0,
        f"an all-reduce under way is finished behind dist.barrier: {behind['group']}, behind one over the store: "
        f"{behind['store']}",
    )


@judging(at_work)
def barrier_leaves_the_store_alone(seen: Seen) -> Result:
    """dist.barrier() makes no key in the store; it is a collective of the group, whose bytes go between the ranks."""
    keys, sent = seen["keys_of_barrier"], seen["sent"]["barrier"]
    return verdict(
        keys == 0 and sent > 0, f"{keys} new keys in the store; {sent} bytes between the ranks (gloo)"
    )


@judging(at_work)
def a_store_releases_all_at_once(seen: Seen) -> Result:
    """The store holds a request until the counter has reached the number of ranks, and then releases everybody."""
    through = 0 < seen["count_at_return"] < seen["ranks"]
    held = min(seen["released_after_s"]) >= 0
    said = "a wait for a key is held until somebody sets it" if held else "a wait is not held"
    if through:
        said += (
            f", but a counter is there at 1 of {seen['ranks']}: waiting for it returns at once; torch's own barrier "
            "has the last rank set another key"
        )
    return verdict(held and not through, said)


@judging(at_work)
def gloo_uses_tcp_and_shared_memory(seen: Seen) -> Result:
    """Between processes of one machine gloo moves data over TCP and over shared memory."""
    sent = seen["sent"]["all_reduce"]
    if not sent:
        return cannot_tell("counters of TCP connections (Linux 4.19 or newer)", "no byte seen on a socket")
    least = seen["ranks"] * 2 * (seen["ranks"] - 1) / seen["ranks"] * seen["reduced"]  # of a ring, all ranks
    return verdict(
        sent < least,
        f"an all-reduce of {seen['reduced']} bytes on {seen['ranks']} ranks of one machine sends {sent} bytes over TCP "
        f"and a ring needs {least:.0f}: "
        + ("nothing is left for shared memory" if sent >= least else "the rest goes elsewhere"),
    )


@judging(at_work)
def the_store_needs_no_gpu(seen: Seen) -> Result:
    """A rank that serves and uses a store has no CUDA context, and the server is a thread of its process."""
    server = [name for name in seen["threads"] if "tcpstore" in name]
    return verdict(
        not seen["cuda_initialized"] and bool(server),
        f"CUDA initialized: {seen['cuda_initialized']}; the server's thread: {', '.join(server) or 'not found'}",
    )


@probe
def backends(bench: Bench) -> Seen:
    """Groups over other backends beside the first, and a group with a backend for each device."""
    return bench.run(_backends, ranks=2)[0]


def _backends() -> Seen:
    shm.register()
    found: Seen = {"world": dist.get_backend(), "sums": {}, "refused": {}}
    for name in ("gloo", "shm", "cpu:gloo,meta:fake"):
        try:
            group = dist.new_group(backend=name)
            x = torch.tensor([dist.get_rank() + 1.0])
            dist.all_reduce(x, group=group)
            dist.all_reduce(x)  # the first group goes on beside it
            found["sums"][name] = x.item()
        except Exception as error:
            found["refused"][name] = f"{type(error).__name__}: {error}"
    return found


@judging(backends)
def several_at_once(seen: Seen) -> Result:
    """Groups over several backends, and one with a backend a device, work side by side in one program."""
    right = {name for name, value in seen["sums"].items() if value == 6.0}
    return verdict(
        len(right) >= 3 and not seen["refused"],
        f"beside a {seen['world']} group: {', '.join(sorted(right)) or 'none'}"
        + (f"; refused: {seen['refused']}" if seen["refused"] else ""),
    )
