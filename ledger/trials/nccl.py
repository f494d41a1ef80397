"""What needs NCCL: unique ids and communicators by NCCL's own log, barriers on GPUs, and which class is 'nccl'."""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.ranks import Ranks, here
from ledger.bench import NEUTRAL, Bench, quietly
from ledger.trial import CannotTell, NotThere, Seen, judge, part

ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES (nccl.h)
LOOK_S, SETTLE_S = 20.0, 1.0
TOLD = re.compile(r"Init (START|COMPLETE)|(Destroy|Abort) (START|COMPLETE)|Channel \S+ : .* via |NVLS")


def tcp_store():
    """The TCPStore below all prefixes of the default group's store."""
    store = distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


# --- communicators: two groups, whose first collectives one rank and then the other comes to late ---


def with_log(function, *arguments, **more: str) -> list[Seen]:
    """On two new NCCL ranks that write NCCL's log into a folder, the first argument of the function."""
    with tempfile.TemporaryDirectory(prefix="ledger-nccl-") as folder:
        env = {
            "NCCL_DEBUG": "INFO",
            "NCCL_ALGO": "Ring",  # whose channels the log tells, also where the switch could add by itself
            "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET",
            "NCCL_DEBUG_FILE": f"{folder}/%p",
            **more,
        }
        with Ranks(2, "cuda", "nccl", timeout=120, quiet=True, env=NEUTRAL | env) as ranks:
            return list(ranks.run(quietly, function, folder, *arguments).values())


def log(folder: str) -> list[str]:
    file = Path(folder, str(os.getpid()))
    return [line for line in file.read_text().splitlines() if TOLD.search(line)] if file.exists() else []


def use(folder: str, collectives: bool) -> Seen:
    me, size = dist.get_rank(), dist.get_world_size()
    store = tcp_store()

    def ids(known: set) -> dict:
        """What is new in the store and has the size of an id."""
        new = set(store.list_keys()) - known
        return {key: value for key in new if len(value := store.get(key)) == ID_BYTES}

    found: Seen = {"late": {}, "right": True, "log": {"before": log(folder)}, "identity": []}
    groups = []
    for late in range(size - 1, -1, -1):  # the last rank first: then rank 0 is alone for a while
        groups.append(dist.new_group(backend=None if collectives else "gloo"))
        known, called = set(store.list_keys()), f"ledger nccl {late} called"
        device = here().device if collectives else "cpu"
        x = torch.full((1 << 20,), me + 1.0, device=device)
        torch.cuda.synchronize()
        store.set(f"ledger nccl {late} ready {me}", "1")  # no rank may call before all have looked
        store.wait([f"ledger nccl {late} ready {rank}" for rank in range(size)])
        if me == late:
            store.wait([called])
            until = time.monotonic() + (LOOK_S if late and collectives else SETTLE_S)
            while not (there := ids(known)) and time.monotonic() < until:
                time.sleep(0.01)
            found["late"][str(late)] = len(there)
        else:
            store.set(called, "1")
        dist.all_reduce(x, group=groups[-1])
        torch.cuda.synchronize()
        found["right"] &= bool((x == size * (size + 1) / 2).all())
        found["identity"] += [identity(value) | {"key": key} for key, value in ids(known).items()]
    found["log"]["after"] = log(folder)
    dist.destroy_process_group(groups[0])
    found["log"]["destroyed"] = log(folder)
    return found


def identity(value: bytes) -> Seen:
    """What an ncclUniqueId holds (ncclBootstrapHandle in NCCL's bootstrap.h): a random key, a socket address, zeros."""
    family = int.from_bytes(value[8:10], "little")
    named, where, scope = str(family), b"", 0
    if family == socket.AF_INET:
        named, where = "AF_INET", value[12:16]
    elif family == socket.AF_INET6:
        named, where, scope = "AF_INET6", value[16:32], int.from_bytes(value[32:36], "little")
    ours = bool(where) and of_this_host(family, where, scope)
    return {"bytes": len(value), "secret": value[:8].hex(), "family": named, "of_this_host": ours}


def of_this_host(family: int, address: bytes, scope: int = 0) -> bool:
    """Only an address of this machine can be bound."""
    try:
        with socket.socket(family) as here_:
            more = (0, scope) if family == socket.AF_INET6 else ()
            here_.bind((socket.inet_ntop(family, address), 0, *more))
    except OSError:
        return False
    return True


def over_nccl(bench: Bench) -> Seen:
    return {"ranks": with_log(use, True), "joined": by_nvlink()}


def over_gloo(bench: Bench) -> Seen:
    """The same on groups of gloo."""
    return {"ranks": with_log(use, False), "joined": by_nvlink()}


def without_p2p(bench: Bench) -> Seen:
    return {"ranks": with_log(use, True, NCCL_P2P_DISABLE="1"), "joined": by_nvlink()}


def lines(seen: Seen, when: str, pattern: str) -> list[list[str]]:
    """For each rank, what the pattern's group says in the lines of the log, each once and in order."""
    return [
        list(dict.fromkeys(m[1] for line in rank["log"][when] if (m := re.search(pattern, line))))
        for rank in seen["ranks"]
    ]


def communicators(seen: Seen, when: str) -> list[list[str]]:
    return lines(seen, when, r"(comm 0x\w+) .*Init COMPLETE")


@judge(over_nccl, counter=over_gloo)
def id_in_store(seen):
    ranks = seen["ranks"]
    late = {rank: count for one in ranks for rank, count in one["late"].items()}
    keys = [sorted((one["key"], one["secret"]) for one in rank["identity"]) for rank in ranks]
    ids = ranks[0]["identity"]
    alone = late["1"] == 1 and late["0"] == 0
    said = f"while rank 0 is alone {late['1']} ids, while rank 1 is alone {late['0']}"
    yield part("rank 0 alone puts", alone and all(one["of_this_host"] for one in ids), said)
    said = (
        f"{len(ids)} ids for {len(ranks)} communicators, such as under {keys[0][0][0]!r}" if ids else "no id"
    )
    yield part("one id of 128 bytes into the store for each communicator", len(ids) == len(ranks), said)
    same = bool(ids) and all(mine == keys[0] for mine in keys)
    yield part("the others find it there", same, f"the same ids on all ranks: {same}")


@judge(over_nccl, counter=over_gloo)
def id_holds_address_and_key(seen):
    ids = seen["ranks"][0]["identity"]
    if not ids and any(communicators(seen, "after")):
        raise ValueError("there are communicators, and no id of theirs is in the store to be read")
    secrets = {one["secret"] for one in ids}
    fresh = bool(ids) and len(secrets) == len(ids) and set(secrets) != {"0" * 16}
    ours = bool(ids) and all(one["of_this_host"] for one in ids)
    yield part("another key of 8 bytes each time", fresh, f"8 bytes, {len(secrets)} of {len(ids)} different")
    said = f"{ids[0]['family']}, {'an' if ours else 'no'} address of this machine" if ids else "no id"
    yield part("an address of rank 0's machine", ours, said)


@judge(over_nccl, counter=over_gloo)
def communicator_at_first_collective(seen):
    channels = [lines(seen, when, r"(Channel \S+) : ") for when in ("before", "after")]
    before, after = (communicators(seen, when) for when in ("before", "after"))
    ended = lines(seen, "destroyed", r"(comm 0x\w+) .*(?:Destroy|Abort) COMPLETE")
    none = not any(before) and not any(channels[0])
    yield part("no communicator and no channel before its first collective", none, f"{len(before[0])} before")
    made = all(len(mine) == len(seen["ranks"]) for mine in after) and all(channels[1])
    said = f"{len(after[0])} communicators and {len(channels[1][0])} channels after"
    yield part("has both after it", made, said)
    yield part(
        "destroy_process_group ends the communicator", all(ended), f"{len(ended[0])} ended with its group"
    )


@judge(over_nccl, counter=over_gloo)
def comm_init_rank(seen):
    size = str(len(seen["ranks"]))
    sizes = lines(seen, "after", r"nranks (\d+) .*Init COMPLETE")
    called = all(lines(seen, "after", r"(ncclCommInitRank)\w* comm .*Init COMPLETE"))
    ways = lines(seen, "after", r"Channel \S+ : .* via (\S+)")
    yield part("calls ncclCommInitRank", called, f"called on each rank: {called}")
    yield part("number of ranks", all(mine == [size] for mine in sizes), f"of {sizes[0]} ranks")
    yield part("its channels follow", all(ways), f"channels via {ways[0] or 'nothing'}")


@judge(over_nccl, counter=without_p2p)
def over_nvlink(seen):
    if not seen["joined"]:
        raise CannotTell("2 GPUs joined by NVLink")
    ways = sorted({way for mine in lines(seen, "after", r"Channel \S+ : .* via (\S+)") for way in mine})
    if not ways:
        raise ValueError("the reader finds no channel in NCCL's log")
    right = all(rank["right"] for rank in seen["ranks"])
    direct = all(way.startswith("P2P") for way in ways)
    yield part("via P2P", direct and right, f"channels via {', '.join(ways)}; right sums: {right}")


def by_nvlink() -> bool:
    """Whether the two GPUs in use are joined by NVLink, as `nvidia-smi topo -m` says."""
    used = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1").split(",")[:2]
    if len(used) < 2 or not all(number.strip().isdigit() for number in used):
        return False
    try:
        said = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    one, other = map(int, used)
    for row in said.splitlines():
        cells = re.sub(r"\x1b\[[\d;]*m", "", row).split()  # the head of the table is underlined
        if cells[:1] == [f"GPU{one}"] and len(cells) > other + 1 and cells[1] != "GPU1":
            return re.fullmatch(r"NV\d+", cells[other + 1]) is not None
    return False


# --- barriers on GPUs ---

LATE_MS = 300.0


def cycles_per_ms() -> float:
    """How many cycles of torch.cuda._sleep take a millisecond."""
    cycles, taken = 20_000_000, []
    for _ in range(12):  # the first ones while the clock still rises
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end))
    return cycles / min(taken[-3:])


def wait_for_a_busy_gpu(kind: str) -> Seen:
    """The last rank's GPU is busy as it comes to the barrier."""
    me, size, store = dist.get_rank(), dist.get_world_size(), distributed_c10d._get_default_store()
    names = [f"ledger barrier {time.time_ns()}"]
    dist.broadcast_object_list(names, 0)
    busy = int(LATE_MS * cycles_per_ms())

    def over_the_store() -> None:
        store.set(f"{names[0]} {me}", "1")
        store.wait([f"{names[0]} {rank}" for rank in range(size)])

    dist.barrier()
    torch.cuda.synchronize()
    if me == size - 1:
        torch.cuda._sleep(busy)
    began = time.perf_counter()
    (dist.barrier if kind == "group" else over_the_store)()
    torch.cuda.current_stream().synchronize()
    seen = {"ms": (time.perf_counter() - began) * 1e3, "late": me == size - 1}
    torch.cuda.synchronize()
    return seen


def group_barrier(bench: Bench) -> Seen:
    return {"ranks": list(bench.on_gpus(wait_for_a_busy_gpu, "group", ranks=2))}


def barrier_over_the_store(bench: Bench) -> Seen:
    return {"ranks": list(bench.on_gpus(wait_for_a_busy_gpu, "store", ranks=2))}


@judge(group_barrier, counter=barrier_over_the_store)
def barrier_waits_for_gpus(seen):
    waited = min(rank["ms"] for rank in seen["ranks"] if not rank["late"])
    said = f"while rank 1's GPU is busy for {LATE_MS:.0f} ms: {waited:.0f} ms in rank 0's barrier"
    yield part("waits for the GPU work of the other rank", waited >= LATE_MS / 2, said)


def recorded(kind: str) -> Seen:
    """The entries that a call adds to torch's flight recorder."""
    x = torch.ones(1 << 10, device=here().device)

    def entries() -> list[dict]:
        found: dict = {}
        for name in ("_dump_fr_trace", "_dump_nccl_trace"):
            dump = getattr(torch._C._distributed_c10d, name, None)
            for entry in pickle.loads(dump(True, False)).get("entries", []) if dump else []:
                found.setdefault((entry.get("time_created_ns"), entry["profiling_name"]), entry)
        return [found[key] for key in sorted(found)]

    dist.all_reduce(x)
    torch.cuda.synchronize()
    known = len(entries())
    dist.barrier() if kind == "barrier" else dist.all_reduce(x)
    torch.cuda.synchronize()
    new = entries()[known:]
    return {
        "known": known,
        "new": [[one["profiling_name"], one.get("input_sizes"), one.get("input_dtypes")] for one in new],
    }


def a_recorded_barrier(bench: Bench) -> Seen:
    return bench.on_gpus(recorded, "barrier", ranks=2)[0]


def a_recorded_all_reduce(bench: Bench) -> Seen:
    return bench.on_gpus(recorded, "all_reduce", ranks=2)[0]


@judge(a_recorded_barrier, counter=a_recorded_all_reduce)
def barrier_is_an_all_reduce(seen):
    if not seen["known"] or not seen["new"]:
        raise ValueError("the flight recorder has no entry of a collective")
    names = [name for name, _, _ in seen["new"]]
    said = "; ".join(f"{name} of {sizes} {dtypes}" for name, sizes, dtypes in seen["new"])
    yield part("an all-reduce", len(names) == 1 and "all_reduce" in names[0], said)
    yield part("of one element", [sizes for _, sizes, _ in seen["new"]] == [[[1]]], said)


# --- which class is 'nccl': read from the function that torch registers, without a GPU ---


def registered(setting: str | None) -> Seen:
    """The classes that the functions registered for NCCL's names construct."""
    backend, name = dist.Backend, "TORCH_DIST_USE_NCCL2"
    if not hasattr(distributed_c10d, "_create_nccl2_process_group"):
        raise NotThere("torch.distributed has no ProcessGroupNCCL2")
    kept, was = dict(backend._plugins), os.environ.pop(name, None)
    if setting is not None:
        os.environ[name] = setting
    try:
        backend._plugins.pop("NCCL", None)  # registered at the first use of the name
        found = {}
        for one in ("nccl", "nccl-legacy", "nccl2"):
            backend._ensure_backend_registered(one)
            used = backend._plugins[one.upper()].creator_fn.__code__.co_names
            found[one] = next(
                (kind for kind in ("ProcessGroupNCCL2", "ProcessGroupNCCL") if kind in used), ""
            )
    finally:
        os.environ.pop(name, None)
        if was is not None:
            os.environ[name] = was
        backend._plugins.clear()
        backend._plugins.update(kept)
    return found


def by_default(bench: Bench) -> Seen:
    return bench.run(registered, None)[0]


def switched_off(bench: Bench) -> Seen:
    return bench.run(registered, "0")[0]


@judge(by_default, counter=switched_off)
def nccl_is_nccl2(seen):
    if (seen["nccl2"], seen["nccl-legacy"]) != ("ProcessGroupNCCL2", "ProcessGroupNCCL"):
        raise ValueError(f"the reader does not find the classes of 'nccl2' and 'nccl-legacy': {seen}")
    made = seen["nccl"]
    said = "; ".join(f"{name!r}: {kind or 'neither'}" for name, kind in seen.items())
    yield part("makes a ProcessGroupNCCL2", made == "ProcessGroupNCCL2", said)
