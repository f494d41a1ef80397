"""How NCCL's communicators come to be and end: the id, the store, the connections, by NCCL's own log. Needs GPUs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks import Ranks
from labkit.study.checks import HOLDS, Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict
from labkit.torch_compat import default_store

ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES (nccl.h)
LOOK_S, SETTLE_S = 20.0, 1.0
TOLD = re.compile(r"Init (START|COMPLETE)|(Destroy|Abort) (START|COMPLETE)|Channel \S+ : .* via |NVLS")


@probe
def communicators(bench: Bench) -> Seen:
    """Two groups, whose first collectives one rank and then the other comes to late: the store's keys, NCCL's log."""
    with tempfile.TemporaryDirectory(prefix="labkit-nccl-") as folder:
        env = {
            "NCCL_DEBUG": "INFO",
            "NCCL_ALGO": "Ring",  # whose channels the log tells, also where the switch could add by itself
            "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET",
            "NCCL_DEBUG_FILE": f"{folder}/%p",
        }
        settings: dict[str, Any] = {"timeout": 120, "env": env, "quiet": True}
        with Ranks(2, "cuda", "nccl", **settings) as ranks:
            found = ranks.run(quietly, _communicators, folder)
    return {"ranks": list(found), "nvlink": _nvlink()}


def _communicators(folder: str) -> Seen:
    from labkit.ranks import here

    me, size = dist.get_rank(), dist.get_world_size()
    counted = default_store()
    while isinstance(counted, dist.PrefixStore):
        counted = counted.underlying_store

    def ids(known: set[str]) -> dict[str, bytes]:
        """What is new in the store and has the size of an id."""
        new = set(counted.list_keys()) - known
        return {key: value for key in new if len(value := counted.get(key)) == ID_BYTES}

    def log() -> list[str]:
        file = Path(folder, str(os.getpid()))
        return [line for line in file.read_text().splitlines() if TOLD.search(line)] if file.exists() else []

    found: Seen = {"late": {}, "right": True, "log": {"before": log()}, "identity": []}
    groups = []
    for late in range(size - 1, -1, -1):  # the last rank first: then rank 0 is alone for a while
        groups.append(dist.new_group())
        known, called = set(counted.list_keys()), f"labkit nccl {late} called"
        x = torch.full((1 << 20,), me + 1.0, device=here().device)
        torch.cuda.synchronize()
        counted.set(f"labkit nccl {late} ready {me}", "1")  # no rank may call before all have looked
        counted.wait([f"labkit nccl {late} ready {rank}" for rank in range(size)])
        if me == late and size > 1:
            counted.wait([called])
            until = time.monotonic() + (LOOK_S if late else SETTLE_S)
            while not (there := ids(known)) and time.monotonic() < until:
                time.sleep(0.01)
            found["late"][str(late)] = len(there)
        else:
            counted.set(called, "1")
        dist.all_reduce(x, group=groups[-1])
        torch.cuda.synchronize()
        found["right"] &= bool((x == size * (size + 1) / 2).all())
        found["identity"] += [identity(value) | {"key": key} for key, value in ids(known).items()]
    found["log"]["after"] = log()
    dist.destroy_process_group(groups[0])
    found["log"]["destroyed"] = log()
    return found


def identity(value: bytes) -> Seen:
    """What an ncclUniqueId holds (ncclBootstrapHandle in NCCL's bootstrap.h): a random key, a socket address, zeros.

    >>> key, port, address = bytes(range(1, 9)), bytes(2), socket.inet_aton("127.0.0.1")
    >>> identity(key + socket.AF_INET.to_bytes(2, "little") + port + address + bytes(112))
    {'bytes': 128, 'secret': '0102030405060708', 'family': 'AF_INET', 'of_this_host': True}
    """
    family = int.from_bytes(value[8:10], "little")
    named, where, scope = str(family), b"", 0
    if family == socket.AF_INET:
        named, where = "AF_INET", value[12:16]
    elif family == socket.AF_INET6:
        named, where, scope = "AF_INET6", value[16:32], int.from_bytes(value[32:36], "little")
    return {
        "bytes": len(value),
        "secret": value[:8].hex(),
        "family": named,
        "of_this_host": bool(where) and _ours(family, where, scope),
    }


def _ours(family: int, address: bytes, scope: int = 0) -> bool:
    """Whether this machine has the address: only then can it be bound."""
    try:
        with socket.socket(family) as here:
            more = (0, scope) if family == socket.AF_INET6 else ()
            here.bind((socket.inet_ntop(family, address), 0, *more))
    except OSError:
        return False
    return True


def _nvlink() -> bool:
    """Whether the two GPUs in use are joined by NVLink, as `nvidia-smi topo -m` says."""
    used = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1").split(",")[:2]
    if len(used) < 2 or not all(number.strip().isdigit() for number in used):
        return False
    try:
        said = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return joined(said, *map(int, used))


def joined(said: str, one: int, other: int) -> bool:
    """Whether the matrix of `nvidia-smi topo -m` has NVLink between two GPUs.

    >>> joined("\\tGPU0\\tGPU1\\tGPU2\\nGPU0\\t X \\tNV4\\tSYS\\nGPU1\\tNV4\\t X \\tSYS", 0, 1)
    True
    >>> joined("\\tGPU0\\tGPU1\\tGPU2\\nGPU0\\t X \\tNV4\\tSYS\\nGPU1\\tNV4\\t X \\tSYS", 0, 2)
    False
    """
    for row in said.splitlines():
        cells = re.sub(r"\x1b\[[\d;]*m", "", row).split()  # the head of the table is underlined
        if cells[:1] == [f"GPU{one}"] and len(cells) > other + 1 and cells[1] != "GPU1":
            return re.fullmatch(r"NV\d+", cells[other + 1]) is not None
    return False


def _lines(seen: Seen, when: str, pattern: str) -> list[list[str]]:
    """For each rank, what the pattern's group says in the lines of the log, each once and in order."""
    return [
        list(dict.fromkeys(m[1] for line in rank["log"][when] if (m := re.search(pattern, line))))
        for rank in seen["ranks"]
    ]


def _initialized(seen: Seen, when: str) -> list[list[str]]:
    return _lines(seen, when, r"(comm 0x\w+) .*Init COMPLETE")


@judging(communicators)
def rank_zero_makes_an_id(seen: Seen) -> Result:
    """Rank 0 alone makes an id of NCCL's size, with an address of its machine, one for each communicator."""
    ids, late = seen["ranks"][0]["identity"], _late(seen)
    alone = late.get("1", 1) == 1 and late.get("0", 0) == 0 and all(one["of_this_host"] for one in ids)
    said = f"{len(ids)} ids of {ID_BYTES} bytes for {_groups(seen)} communicators"
    if "1" in late:
        said += f"; while rank 0 is alone there are {late['1']}, while rank 1 is alone {late['0']}"
    return verdict(alone and len(ids) == _groups(seen), said)


@judging(communicators)
def the_id_holds_address_and_key(seen: Seen) -> Result:
    """The id holds an address of rank 0's machine and a key that is another one each time."""
    ids = seen["ranks"][0]["identity"]
    if not ids:
        return verdict(False, "no id was seen in the store")
    secrets = {one["secret"] for one in ids}
    ours = all(one["of_this_host"] for one in ids)
    said = f"8 bytes, {len(secrets)} of {len(ids)} different, then {ids[0]['family']} and "
    said += "an address of this machine" if ours else "no address of this machine"
    return verdict(ours and len(secrets) == len(ids) and set(secrets) != {"0" * 16}, said)


@judging(communicators)
def the_id_goes_through_the_store(seen: Seen) -> Result:
    """Rank 0 puts the id into the store, and rank 1 alone puts none; every rank finds the same one there."""
    keys = [sorted((one["key"], one["secret"]) for one in rank["identity"]) for rank in seen["ranks"]]
    same, made = bool(keys[0]) and all(mine == keys[0] for mine in keys), rank_zero_makes_an_id(seen)
    said = f"under {keys[0][0][0]!r}" if keys[0] else "no value of that size in the store"
    return verdict(same and made.status == HOLDS, f"{said}; {made.measured}")


@judging(communicators)
def all_connect(seen: Seen) -> Result:
    """Behind the ids every rank calls ncclCommInitRank for all ranks, and only then are there channels."""
    sizes = _lines(seen, "after", r"nranks (\d+) .*Init COMPLETE")
    ways = _lines(seen, "after", r"Channel \S+ : .* via (\S+)")
    called = all(_lines(seen, "after", r"(ncclCommInitRank)\w* comm .*Init COMPLETE"))
    early = any(_lines(seen, "before", r"(Channel \S+|Init COMPLETE)"))
    ok = all(mine == [str(len(seen["ranks"]))] for mine in sizes) and all(ways) and called and not early
    counts = ", ".join(str(len(mine)) for mine in _initialized(seen, "after"))
    return verdict(
        ok,
        f"communicators by rank: {counts}, by ncclCommInitRank: {called}; of {sizes[0]} ranks; before the ids: "
        f"{'some' if early else 'none'}; channels via {ways[0] or 'nothing'}",
    )


@judging(communicators)
def rings_come_behind_the_store(seen: Seen) -> Result:
    """Before the ids are in the store no communicator has a channel of a ring; behind them every rank has."""
    before, after = (_lines(seen, when, r"(Channel \S+) : ") for when in ("before", "after"))
    ids = len(seen["ranks"][0]["identity"])
    said = f"channels: {len(before[0])} before, {len(after[0])} after {ids} ids went through the store"
    return verdict(bool(ids) and not any(before) and all(after), said)


@judging(communicators)
def the_group_owns_its_communicator(seen: Seen) -> Result:
    """A group has no communicator before its first collective, one after it, and none once it is destroyed."""
    before, after = (_initialized(seen, when) for when in ("before", "after"))
    ended = _lines(seen, "destroyed", r"(comm 0x\w+) .*(?:Destroy|Abort) COMPLETE")
    ok = not any(before) and all(len(mine) == _groups(seen) for mine in after) and all(ended)
    said = [
        f"{len(mine[0])} {what}"
        for mine, what in ((before, "before"), (after, "after the first collectives"))
    ]
    return verdict(ok, f"{', '.join(said)}; {len(ended[0])} ended with the group that was destroyed")


@judging(communicators)
def nccl_moves_the_bytes(seen: Seen) -> Result:
    """The sum is right on every rank, over channels of NCCL's that name the hardware's way."""
    ways = _lines(seen, "after", r"Channel \S+ : .* via (\S+)")
    right = all(rank["right"] for rank in seen["ranks"])
    return verdict(right and all(ways), f"right sums: {right}; via {', '.join(ways[0]) or 'nothing'}")


@judging(communicators)
def over_nvlink(seen: Seen) -> Result:
    """Between GPUs joined by NVLink NCCL's channels go from GPU to GPU, and between machines over InfiniBand."""
    ways = sorted({way for mine in _lines(seen, "after", r"Channel \S+ : .* via (\S+)") for way in mine})
    said = f"channels via {', '.join(ways) or 'nothing'}"
    if not seen["nvlink"]:
        return cannot_tell("GPUs joined by NVLink", said)
    far = [way for way in ways if way.startswith("NET/IB")]
    near = [way for way in ways if way.startswith(("P2P", "NVLS"))]
    if near and near == ways:
        return cannot_tell("a second machine, joined by InfiniBand", f"{said}: NVLink, from GPU to GPU")
    return verdict(bool(near and far) and len(near) + len(far) == len(ways), said)


def _groups(seen: Seen) -> int:
    return len(seen["ranks"])  # a group for each rank that came late


def _late(seen: Seen) -> dict[str, int]:
    """How many ids the late rank saw, by its number."""
    return {late: count for rank in seen["ranks"] for late, count in rank["late"].items()}
