"""Topic 12's table of rank-parity invariants as data, and what this process has to say to each of its rows.

A row has a column for start-up and one for each call. The names are the source's own environment variables where they
mean something only there; beside them stand the settings of torch that play the same part anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.contract.parity import UNSET

__all__ = ["INVARIANTS", "Invariant", "survey"]


@dataclass(frozen=True)
class Invariant:
    """A row of the table: what is pinned at start-up, what travels with each call, and what enforces it."""

    category: str
    at_init: str
    per_call: str
    enforced_by: str
    env: tuple[str, ...]
    live: Callable[[], dict[str, Any]]


def _topology() -> dict[str, Any]:
    import torch.distributed as dist

    up = dist.is_initialized()
    return (
        {"world size": dist.get_world_size(), "backend": dist.get_backend()}
        if up
        else {"world size": "no group"}
    )


def _weights() -> dict[str, Any]:
    import torch

    return {"default dtype": torch.get_default_dtype(), "grad enabled": torch.is_grad_enabled()}


def _compiling() -> dict[str, Any]:
    import torch

    return {"torch": torch.__version__, "deterministic": torch.are_deterministic_algorithms_enabled()}


def _kernels() -> dict[str, Any]:
    import torch

    cuda = torch.backends.cuda
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "float32 matmul": torch.get_float32_matmul_precision(),
        "flash attention allowed": cuda.flash_sdp_enabled(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _phases() -> dict[str, Any]:
    import torch

    return {"threads": torch.get_num_threads()}


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "Topology", "world size, degree of parallelism, roles", "action", "parity, Plan.action",
        ("WORLD_SIZE", "SCOPE_TENSOR_PARALLEL", "SCOPE_TP_PLAN", "SCOPE_PP_ENABLED"), _topology,
    ),
    Invariant(
        "Pipeline identity + weights", "pipeline frozen, no reload", "cache and control epochs",
        "parity, Plan.epochs, Fingerprints", (), _weights,
    ),
    Invariant(
        "Compile mode", "whether to compile, fullgraph", "warmup is planned", "parity, warm_up, assert_same_health",
        ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "SCOPE_TP_ALLOW_COMPILE", "SCOPE_TORCH_COMPILE_FULLGRAPH"),
        _compiling,
    ),
    Invariant(
        "Kernel/backend selection", "attention backend, in effect", "logged only", "parity (effective=)",
        ("SCOPE_KV_BIAS_BACKEND", "CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_MAX_AUTOTUNE"), _kernels,
    ),
    Invariant(
        "Optional phases", "flags that add operations", "recompute, steps, expected calls", "parity, Plan.phases, Run",
        ("OMP_NUM_THREADS",), _phases,
    ),
    Invariant(
        "Drift tripwires", "whether digests and fingerprints are on", "digests in bring-up",
        "InputDigests.settings, Fingerprints.settings", (), dict,
    ),
)  # fmt: skip


def survey() -> list[dict[str, str]]:
    """What this process has for every row: one entry a setting, with category, setting and value as text.

    >>> sorted({entry["category"] for entry in survey()})[0]
    'Compile mode'
    """
    found = []
    for row in INVARIANTS:
        values = {f"env {name}": os.environ.get(name, UNSET) for name in row.env}
        values |= {name: str(value) for name, value in row.live().items()}
        found += [
            {"category": row.category, "setting": name, "value": value} for name, value in values.items()
        ]
    return found
