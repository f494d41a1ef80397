"""The hardware of this machine, and the device and backend that `Ranks` picks on it."""

from __future__ import annotations

from dataclasses import dataclass

from oddrank.machine import VISIBLE, cores, describe, gpus, name, no_gpu, slug, torch_version

__all__ = [
    "BACKENDS",
    "VISIBLE",
    "Choice",
    "choose",
    "cores",
    "describe",
    "gpus",
    "name",
    "share_a_gpu",
    "slug",
    "torch_version",
]

BACKENDS = ("nccl", "gloo", "shm", "fake")
MAX_RANKS_PER_GPU = 8


@dataclass(frozen=True)
class Choice:
    """A device and a backend for a number of ranks, with the reason in words."""

    device: str
    backend: str
    why: str


def choose(world_size: int, device: str = "auto", backend: str = "auto") -> Choice:
    """Pick device and backend: NCCL with a GPU for each rank, gloo on shared GPUs, gloo on the CPU otherwise.

    NCCL refuses two ranks on one GPU of a host. Where 'nccl' is asked for by name, ranks that share a GPU give
    themselves out as hosts of their own (`share_a_gpu`), and NCCL talks TCP between them.

    Args:
        world_size: number of ranks.
        device: 'auto', 'cpu' or 'cuda'.
        backend: 'auto' or one of BACKENDS.

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
        raise ValueError(f"device 'cuda' was asked for, but there is {no_gpu()}")
    if backend == "nccl" and (device == "cpu" or not count):
        raise ValueError(
            f"backend 'nccl' needs a GPU, and there is {no_gpu() if device != 'cpu' else 'none for a CPU rank'}"
        )
    if device == "auto":
        device = "cuda" if count and backend != "shm" else "cpu"
        why = no_gpu() if not count else "shm moves CPU tensors" if device == "cpu" else ""
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
