"""Torch's flight recorder, the list of collectives that each rank keeps, and the program that compares such lists."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from ledger.bench import Bench
from ledger.trial import NotThere, Seen, judge, part

KEEPS, KEEPS_NONE = {"TORCH_FR_BUFFER_SIZE": "100"}, {"TORCH_FR_BUFFER_SIZE": "0"}


def dump() -> dict:
    """What the flight recorder of this rank holds."""
    c10d = torch._C._distributed_c10d
    if not hasattr(c10d, "_dump_fr_trace"):
        raise NotThere("torch._C._distributed_c10d._dump_fr_trace is missing")
    return pickle.loads(c10d._dump_fr_trace())


def last() -> Seen:
    entries = dump()["entries"]
    if not entries:
        return {}
    kept = entries[-1]
    return {name: kept[name] for name in ("profiling_name", "input_sizes", "state", "retired")}


def one_waits() -> Seen:
    """Rank 0 calls an all_reduce, and rank 1 comes when rank 0 has read its recorder."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if dist.get_rank() == 1:
        store.wait(["read"], timedelta(seconds=60))
    work = dist.all_reduce(torch.ones(8), async_op=True)
    waiting = last() if dist.get_rank() == 0 else {}
    store.set("read", "")
    work.wait()
    dist.barrier()
    entries = [kept for kept in dump()["entries"] if kept["input_sizes"] == [[8]]]
    return {"waiting": waiting, "ended": [kept["retired"] for kept in entries]}


def recorded(env: dict[str, str]):
    def probe(bench: Bench) -> Seen:
        with Ranks(2, "cpu", "gloo", timeout=90, quiet=True, env=env) as ranks:
            return ranks.run(quietly, one_waits)[0]

    return probe


@judge(recorded(KEEPS), counter=recorded(KEEPS_NONE))
def keeps_gloo(seen):
    waits = seen["waiting"]
    named = waits.get("profiling_name") == "gloo:all_reduce" and waits.get("input_sizes") == [[8]]
    yield part("its name, its sizes", named, waits or "no entry")
    yield part("retired=False", waits.get("retired") is False)
    yield part("retired=True once it has ended", seen["ended"] == [True], f"ended: retired={seen['ended']}")


def mismatch() -> bytes:
    """In a group of both ranks rank 0 calls an all_reduce and rank 1 a broadcast; a rank's dump."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier()
    x = torch.ones(8)
    with contextlib.suppress(RuntimeError):  # its timeout
        dist.all_reduce(x, group=group) if dist.get_rank() == 0 else dist.broadcast(x, 0, group=group)
    return pickle.dumps(dump())


def with_groups(kept: dict) -> dict:
    """A dump whose pg_config has the groups of its entries by their names, as a dump of NCCL has."""
    groups = {name: desc for name, desc in (entry["process_group"] for entry in kept["entries"])}
    named = {name: {"name": name, "desc": desc, "ranks": "[0, 1]"} for name, desc in groups.items()}
    return {**kept, "pg_config": named}


def torchfrtrace(repaired: bool):
    def probe(bench: Bench) -> Seen:
        with Ranks(2, "cpu", "gloo", timeout=90, quiet=True, env=KEEPS) as ranks:
            dumps = [pickle.loads(one) for one in ranks.run(quietly, mismatch).values()]
        with tempfile.TemporaryDirectory() as folder:
            for rank, kept in enumerate(dumps):
                kept = with_groups(kept) if repaired else kept
                Path(folder, f"trace_{rank}").write_bytes(pickle.dumps(kept))
            program = "from torch.distributed.flight_recorder.fr_trace import main; main()"
            command = [sys.executable, "-c", program, folder, "-p", "trace_"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        said = (done.stdout + done.stderr).strip().splitlines()
        named = next((line.strip() for line in said if "Culprit rank" in line), "")
        return {"rc": done.returncode, "last": said[-1][:200] if said else "", "named": named[:200]}

    return probe


@judge(torchfrtrace(False), counter=torchfrtrace(True))
def torchfrtrace_fails_on_gloo(seen):
    said = seen["named"] or seen["last"]
    yield part("ends with a KeyError", seen["rc"] and seen["last"].startswith("KeyError"), said)
