"""The label of where a number comes from."""

from __future__ import annotations

__all__ = ["run_label"]

HOST_ONLY = "host only"


def run_label(backend: str, device: str, world_size: int = 2, gpus: int = 0) -> str:
    """Say which backend and device ranks used.

    Args:
        backend: The backend of the default process group.
        device: 'cpu' or 'cuda'.
        world_size: The number of ranks.
        gpus: How many GPUs they share; 0: one each.

    Returns:
        'nccl' for one GPU a rank, else backend and device; 'host only' for ranks that move nothing.

    Raises:
        ValueError: There is no label for this backend.

    >>> run_label("gloo", "cpu"), run_label("gloo", "cuda", gpus=1)
    ('gloo · cpu', 'gloo · 1 gpu')
    >>> run_label("nccl", "cuda", gpus=2), run_label("nccl", "cuda", gpus=1), run_label("fake", "cpu")
    ('nccl', 'nccl · 1 gpu', 'host only')
    """
    if backend == "fake":
        return HOST_ONLY
    if backend == "nccl" and (gpus or world_size) >= world_size:
        return "nccl"
    if backend in ("nccl", "gloo", "shm"):
        where = "cpu" if device == "cpu" else f"{gpus or world_size} gpu"
        return f"{backend} · {where}"
    raise ValueError(f"no run label for backend {backend!r}: there are 'nccl', 'gloo', 'shm' and 'fake'")
