"""Two kinds of barrier, what moves which bytes, and several backends at once: four gloo ranks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.utils.store import barrier as store_barrier

from labkit.lessons.shared.sockets import connections, sent_between
from labkit.ranks import shm
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import default_store

SETTLE_S, HELD_S = 0.05, 0.3
LARGE, SMALL = 1 << 22, 1 << 12  # elements: long enough to be still under way, and 16 KiB


@probe
def at_work(bench: Bench) -> Seen:
    """Barriers of both kinds beside an all-reduce that is under way, and the bytes of both on the sockets."""
    found = bench.run(_barriers, ranks=4)
    port = found[0]["port"]

    def sent(name: str, at_store: bool) -> int:
        looks = (
            {
                rank: {
                    ends: n
                    for ends, n in seen["sent"][name][i].items()
                    if (port in (ends[0][1], ends[1][1])) == at_store
                }
                for rank, seen in found.items()
            }
            for i in (0, 1)
        )
        return sum(sent_between(*looks).values())

    names = found[0]["sent"]
    more = {
        "sent": {name: sent(name, False) for name in names},
        "to_store": {name: sent(name, True) for name in names},
    }
    return {**found[0], **more, "reduced": SMALL * 4, "ranks": 4}


def _barriers() -> Seen:
    me, store = dist.get_rank(), default_store()
    counted = store
    while isinstance(counted, dist.PrefixStore):
        counted = counted.underlying_store
    size = dist.get_world_size()
    names = [f"check {time.time_ns()}"]
    dist.broadcast_object_list(names, 0)  # ranks are shared between probes: keys of its own
    prefix = names[0]

    x = torch.ones(LARGE)
    pending: dict[str, list[bool]] = {"store": [], "group": []}
    for i in range(3):
        for kind in pending:
            dist.barrier()
            work = dist.all_reduce(x.fill_(1), async_op=True)
            if kind == "store":
                store_barrier(store, size, f"{prefix} {i}")  # torch's own, with counters
            else:
                dist.barrier()
            pending[kind].append(work.is_completed())
            work.wait()
    found: Seen = {"finished_behind": {kind: all(done) for kind, done in pending.items()}}

    sent = {}
    small = torch.ones(SMALL)
    for name, call in (
        ("barrier", dist.barrier),
        ("all_reduce", lambda: dist.all_reduce(small)),
        ("store", lambda: store_barrier(store, size, f"{prefix} sent")),
    ):
        keys = counted.num_keys()
        dist.barrier()  # nobody asks the store any more
        time.sleep(SETTLE_S)
        before = connections()
        call()
        time.sleep(SETTLE_S)
        sent[name] = (before, connections())
        dist.barrier()
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
        time.sleep(HELD_S)
        times = [time.perf_counter()]  # one clock for all processes of a machine
        store.set(f"{prefix} open", "1")
    store.wait([f"{prefix} open"])
    released = time.perf_counter()
    dist.broadcast_object_list(times, 0)
    after: list[Any] = [None] * size
    dist.all_gather_object(after, released - times[0])
    return found | {"released_after_s": after, "sent": sent, "port": counted.port}


@judging(at_work)
def two_mechanisms(seen: Seen) -> Result:
    """The group's barrier sends between ranks and waits for what is under way; torch's over a store does neither."""
    behind, between, store = seen["finished_behind"], seen["sent"], seen["to_store"]
    return verdict(
        behind["group"] and not behind["store"] and between["barrier"] > 0 == between["store"]
        and store["store"] > 0 == store["barrier"],
        f"an all-reduce under way is finished behind dist.barrier: {behind['group']}, behind one over the store: "
        f"{behind['store']}; bytes between ranks {between['barrier']} and {between['store']}, to and from the store "
        f"{store['barrier']} and {store['store']}",
    )  # fmt: skip


@judging(at_work)
def barrier_leaves_the_store_alone(seen: Seen) -> Result:
    """dist.barrier() makes no key in the store and sends it nothing; its bytes go from rank to rank."""
    keys, sent, store = seen["keys_of_barrier"], seen["sent"]["barrier"], seen["to_store"]["barrier"]
    return verdict(
        keys == 0 and store == 0 and sent > 0,
        f"{keys} new keys in the store, {store} bytes to and from it; {sent} bytes between the ranks (gloo)",
    )


@judging(at_work)
def a_store_releases_all_at_once(seen: Seen) -> Result:
    """The store holds a request until the counter has reached the number of ranks, and then releases everybody."""
    through, times = 0 < seen["count_at_return"] < seen["ranks"], seen["released_after_s"]
    held, together = min(times) >= 0, max(times) - min(times) < HELD_S
    said = "a wait for a key is held until somebody sets it" if held else "a wait is not held"
    if through:
        said += (
            f", but a counter is there at 1 of {seen['ranks']}: waiting for it returns at once; torch's own barrier "
            "has the last rank set another key"
        )
    said += "; all released together" if together else "; some released later"
    return verdict(held and together and not through, said)


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


@probe
def backends(bench: Bench) -> Seen:
    """Groups over other backends beside the first, and a group with a backend for each device."""
    return bench.run(_backends, ranks=2)[0]


def _backends() -> Seen:
    shm.register()
    found: Seen = {"world": dist.get_backend(), "sums": {}, "refused": {}, "made": []}
    for name in ("gloo", "shm", "cpu:gloo,meta:fake"):
        try:
            group = dist.new_group(backend=name)
            kinds = [torch.device(kind) for kind in ("cpu", *(["meta"] if "meta" in name else []))]
            found["made"].append([type(group._get_backend(kind)).__name__ for kind in kinds])
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
    right, made = {name for name, value in seen["sums"].items() if value == 6.0}, seen["made"]
    return verdict(
        len(right) >= 3 and not seen["refused"] and len({kind for kinds in made for kind in kinds}) == 3
        and any(len(set(kinds)) == 2 for kinds in made),
        f"beside a {seen['world']} group: {', '.join(sorted(right)) or 'none'}, made of "
        f"{'; '.join(' and '.join(kinds) for kinds in made)}"
        + (f"; refused: {seen['refused']}" if seen["refused"] else ""),
    )  # fmt: skip
