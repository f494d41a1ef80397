"""Jobs of two ranks that go wrong in a known way, and what torch's flight recorder leaves of each.

    python -m tools.dumps FOLDER [MISHAP ...]      without names: all of them

Each mishap is a plain job: this file, copied as `train.py`, once per rank. With a GPU the backend is NCCL, whose
watchdog writes the dumps (`TORCH_NCCL_DUMP_ON_TIMEOUT`); without one it is gloo, which dumps nothing by itself, so each
rank writes its own when its collective fails, or after four times the timeout where it neither fails nor returns.
`FOLDER/<mishap>` then holds `log_<rank>.txt` and `trace_<rank>`, unless the process was aborted before it could write.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

__all__ = ["MISHAPS", "main"]

Tensor = torch.Tensor


def sizes(rank: int, x: Tensor, seconds: float) -> None:
    """Rank 1's batch is one shorter: both call the same all_reduce, of other sizes."""
    dist.all_reduce(x[: x.numel() - rank])


def order(rank: int, x: Tensor, seconds: float) -> None:
    """Rank 0 reduces and then gathers, rank 1 gathers and then reduces."""
    calls = [lambda: dist.all_reduce(x), lambda: dist.all_gather([torch.empty_like(x) for _ in range(2)], x)]
    for call in calls if rank == 0 else reversed(calls):
        call()


def missing(rank: int, x: Tensor, seconds: float) -> None:
    """Rank 1 is still loading its batch when the others reduce."""
    if rank == 1:
        time.sleep(2 * seconds)
    dist.all_reduce(x)


def branch(rank: int, x: Tensor, seconds: float) -> None:
    """A compiled step takes another branch on rank 1, for its mean is negative there: one collective more."""

    @torch.compile
    def forward(x: Tensor) -> Tensor:
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + 1

    @torch.compile
    def corrected(x: Tensor) -> Tensor:
        scale = funcol.all_reduce(x.abs().amax().reshape(1), "max", dist.group.WORLD)
        return funcol.all_reduce(x / scale, "sum", dist.group.WORLD) + 1

    x = x - 2 * rank
    (forward if float(x.mean()) > 0 else corrected)(x).sum().item()


MISHAPS = {one.__name__: one for one in (sizes, order, missing, branch)}


def job(name: str, folder: Path, seconds: float) -> None:
    """What one rank runs: three good steps, then the mishap; `seconds` is the group's timeout."""
    rank, gpu = int(os.environ["RANK"]), torch.cuda.is_available()
    device = f"cuda:{rank % torch.cuda.device_count()}" if gpu else "cpu"
    dist.init_process_group("nccl" if gpu else "gloo", timeout=datetime.timedelta(seconds=seconds))
    x = torch.full((1024,), 1.0, device=device)

    for _ in range(3):
        dist.all_reduce(x.clone())
    dist.barrier(device_ids=[rank % torch.cuda.device_count()] if gpu else None)

    leaving = threading.Lock()

    def leave() -> None:
        leaving.acquire()  # for good: the timer may come while this writes, and would end the process
        c10d, file = torch._C._distributed_c10d, folder / f"trace_{rank}"
        held = c10d._dump_nccl_trace() if gpu else c10d._dump_fr_trace()
        if not file.exists() and pickle.loads(held)["entries"]:  # torch 2.15 has none to give over NCCL
            file.write_bytes(held)
        os._exit(1)

    threading.Timer(4 * seconds, leave).start()  # NCCL's watchdog ends the process before
    try:
        MISHAPS[name](rank, x, seconds)
        if gpu:
            torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
    if gpu:  # the other rank, or the watchdog, may still need this one; the timer ends it
        time.sleep(5 * seconds)
    leave()


def start(name: str, folder: Path, seconds: float) -> list[subprocess.Popen[bytes]]:
    """Start both ranks of a mishap; their output goes to `log_<rank>.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    shutil.copyfile(__file__, script)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = torch.cuda.device_count() < 2
    ranks = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
        for buffer in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
            env[buffer] = "2000"
        for file in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            env[file] = "trace_"
        if shared:
            env["NCCL_HOSTID"] = f"one-{rank}"  # two ranks on one GPU: NCCL refuses them on one host
        with (folder / f"log_{rank}.txt").open("wb") as log:
            command = [sys.executable, script.name, "--rank-of", name, "--seconds", str(seconds), "."]
            ranks.append(subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT))
    return ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 where a mishap left no dump."""
    parser = argparse.ArgumentParser(prog="python -m tools.dumps", description=__doc__.split("\n")[0])
    parser.add_argument("--rank-of", choices=MISHAPS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=12.0, help="the groups' timeout (default: 12)")
    parser.add_argument("folder", type=Path)
    parser.add_argument("mishaps", nargs="*", metavar="MISHAP", help=f"of {', '.join(MISHAPS)}")
    given = parser.parse_args(arguments)
    if given.rank_of:
        job(given.rank_of, given.folder, given.seconds)
    if unknown := set(given.mishaps) - set(MISHAPS):
        parser.error(f"no mishap is called {sorted(unknown)[0]!r}: there are {', '.join(MISHAPS)}")
    jobs = {name: start(name, given.folder / name, given.seconds) for name in given.mishaps or MISHAPS}
    until = time.monotonic() + 120 + 4 * given.seconds
    lost = []
    for name, ranks in jobs.items():
        for rank, process in enumerate(ranks):
            try:
                process.wait(max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            dump = given.folder / name / f"trace_{rank}"
            entries = len(pickle.loads(dump.read_bytes())["entries"]) if dump.exists() else 0
            print(f"{name}: rank {rank} ended with {process.returncode}, its dump has {entries} collectives")
        if not any((given.folder / name).glob("trace_*")):
            lost.append(name)
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
