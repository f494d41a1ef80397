"""The hardware of this machine, and the device and backend that `Ranks` picks on it."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BACKENDS = ("nccl", "gloo", "shm", "fake")
VISIBLE = "CUDA_VISIBLE_DEVICES"
MAX_RANKS_PER_GPU = 8


@dataclass(frozen=True)
class Choice:
    """A device and a backend for a number of ranks, with the reason in words."""

    device: str
    backend: str
    why: str


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """The names of the NVIDIA GPUs that torch can use here, as `nvidia-smi` lists them; no CUDA context is made.

    `CUDA_VISIBLE_DEVICES` is respected. A machine without a driver has none, and neither has a torch built for the CPU.
    """
    return [] if _for_cpu() else _visible(_listed())


def _for_cpu() -> bool:
    try:
        return torch_version().endswith("+cpu")
    except ValueError:
        return False


@functools.cache
def _listed() -> list[list[str]]:
    """Index, UUID and name of every GPU."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in listing.splitlines() if line.strip()]


def _none() -> str:
    """Why there is no GPU."""
    return "no GPU for a torch built for the CPU" if _for_cpu() and _listed() else "no GPU here"


def visible() -> dict[str, str | None]:
    """The environment that makes a new process see this process's GPUs where an older one starts it; None: unset."""
    return {VISIBLE: os.environ.get(VISIBLE)}


def _visible(rows: list[list[str]]) -> list[str]:
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return [row[2] for row in rows]
    chosen: list[str] = []
    for wanted in filter(None, (item.strip() for item in visible.split(","))):
        if rows and wanted.startswith("MIG-"):  # a part, which nvidia-smi lists elsewhere; CUDA takes one
            return chosen or [f"{rows[0][2]}, a MIG part"]
        match = [row[2] for row in rows if wanted == row[0] or row[1].startswith(wanted)]
        if not match:  # CUDA stops at the first entry it does not know
            break
        chosen.append(match[0])
    return chosen


@functools.cache
def torch_version() -> str:
    """The version of the installed torch, without importing it.

    Raises:
        ValueError: torch is not installed.
    """
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError("torch is not installed in this environment: `make lab` installs it") from None


def choose(world_size: int, device: str = "auto", backend: str = "auto") -> Choice:
    """Pick device and backend: NCCL with a GPU for each rank, gloo on shared GPUs, gloo on the CPU otherwise.

    NCCL refuses two ranks on one GPU of a host. Where 'nccl' is asked for by name, ranks that share a GPU give
    themselves out as hosts of their own (`share_a_gpu`), and NCCL talks TCP between them.

    Args:
        world_size: number of ranks.
        device: 'auto', 'cpu' or 'cuda'.
        backend: 'auto' or one of BACKENDS.

    Returns:
        The choice.

    Raises:
        ValueError: this machine cannot carry that.

    >>> choose(2, device="cpu", backend="shm").backend
    'shm'
    """
    count = len(gpus()) if device != "cpu" else 0
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of at least 1, got {world_size!r}")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}: use 'auto', 'cpu' or 'cuda'")
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: use 'auto', {', '.join(map(repr, BACKENDS))}")
    if device == "cuda" and not count:
        raise ValueError(f"device 'cuda' was asked for, but there is {_none()}")
    if backend == "nccl" and (device == "cpu" or not count):
        raise ValueError(
            f"backend 'nccl' needs a GPU, and there is {_none() if device != 'cpu' else 'none for a CPU rank'}"
        )
    if device == "auto":
        device = "cuda" if count and backend != "shm" else "cpu"
        why = _none() if not count else "shm moves CPU tensors" if device == "cpu" else ""
    else:
        why = f"device={device!r} was asked for"
    if backend == "shm" and device == "cuda":
        raise ValueError("backend 'shm' moves CPU tensors only: use device='cpu'")
    limit = max(32, 4 * cores()) if device == "cpu" else MAX_RANKS_PER_GPU * count
    if world_size > limit:
        carrier = f"{cores()} CPU cores" if device == "cpu" else f"{count} GPU{'s' * (count != 1)}"
        raise ValueError(f"world_size {world_size} is above what {carrier} carry here: at most {limit}")
    if backend == "shm" and not 2 <= world_size <= 8:
        raise ValueError(f"backend 'shm' carries 2 to 8 ranks, got {world_size}: use 'gloo'")
    shared = "one GPU shared by all ranks" if count == 1 else f"{world_size} ranks share {count} GPUs"
    if backend == "nccl" and count < world_size:
        why = f"{shared}, over TCP"
    if backend != "auto":
        return Choice(device, backend, f"backend={backend!r} was asked for" + (f"; {why}" if why else ""))
    if device == "cpu":
        return Choice(device, "gloo", why)
    if count >= world_size:
        return Choice(device, "nccl", f"{count} GPUs, one a rank")
    return Choice(device, "gloo", f"{shared}, and NCCL wants one each")


def share_a_gpu(rank: int, ranks: int, gpus: int) -> dict[str, str]:
    """The environment in which NCCL lets a rank share its GPU: empty where each rank of this machine has its own.

    NCCL takes two ranks on one device of one host for a mistake ("Duplicate GPU detected"), and tells hosts apart by
    NCCL_HOSTID. No NVLink, no PCIe between GPUs and no shared memory is used then: the calls, streams and events are
    NCCL's, and the times say nothing about it.

    >>> share_a_gpu(1, ranks=2, gpus=1)
    {'NCCL_HOSTID': 'labkit-1'}
    >>> share_a_gpu(1, ranks=2, gpus=2)
    {}
    """
    return {"NCCL_HOSTID": f"labkit-{rank}"} if gpus < ranks else {}


def name() -> str:
    """This machine in a few words: its GPUs, or else its number of cores."""
    names = gpus()
    return f"{len(names)}x {names[0]}" if names else f"{cores()}-core CPU"


def slug() -> str:
    """The name of the machine as it begins the name of a folder of recordings.

    >>> slug() == slug().lower()
    True
    """
    return re.sub(r"[^a-z0-9]+", "-", name().lower()).strip("-")


def describe() -> dict[str, Any]:
    """The hardware and software of this machine, as provenance stores it."""
    names = gpus()
    return {
        "hardware": name(),
        "cpu": _cpu_name(),
        "gpus": names,
        "driver": _driver() if names else "",
        "cores": cores(),
        "platform": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "python": platform.python_version(),
        "torch": torch_version(),
        "commit": _commit(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


@functools.cache
def _commit() -> str:
    """The commit of the checkout of labkit, with '+changes' when the tree is not clean."""
    here = Path(__file__).resolve().parents[1]
    try:
        run = functools.partial(
            subprocess.run, cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        commit = run(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
        changed = run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "labkit", "course", "ledger"]
        ).stdout.strip()
        return commit + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""
