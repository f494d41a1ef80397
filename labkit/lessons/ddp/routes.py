"""Routes of the lesson: DDP by each mode of the compiler, each as a function that builds it on a rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from labkit import torch_compat
from labkit.lessons.shared.training import Route

__all__ = ["ROUTES", "ddp"]


def ddp(model: Any, backend: Any, mode: str = "", captured: bool = False, cap_mb: float = 2.0) -> Route:
    """DDP, compiled from outside by a mode of `optimize_ddp`, or eager without one."""
    if mode:
        torch._dynamo.config.optimize_ddp = mode  # type: ignore[attr-defined, assignment]
    parallel = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
    route = Route(parallel, torch.compile(parallel, backend=backend) if mode else parallel)
    if captured:
        whole_pass = torch.compile(backend=backend)  # made once: another one would compile once more
        route.capture = lambda: torch_compat.compiled_autograd(whole_pass)
    return route


ROUTES: dict[str, Callable[[Any, Any], Route]] = {
    "DDP, eager": ddp,
    "DDP, ddp_optimizer": partial(ddp, mode="ddp_optimizer"),
    "DDP, no_optimization": partial(ddp, mode="no_optimization"),
    "DDP, python_reducer": partial(ddp, mode="python_reducer"),
    "DDP, python_reducer, compiled autograd": partial(ddp, mode="python_reducer", captured=True),
}
