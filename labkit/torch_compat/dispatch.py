"""The dispatcher: the operators and collectives that pass it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oddrank.torch_names import require


def around_operators(run: Callable[[Any, Any, Any], Any]) -> Any:
    """Give a context in which `run(func, args, kwargs)` is called for every operator that this thread dispatches."""
    return _mode(lambda func, types, args, kwargs: run(func, args, kwargs))


def on_collective(seen: Callable[[str, int], None]) -> Any:
    """Give a context in which `seen(name, nbytes)` is called for every collective that this thread dispatches.

    `nbytes` are the bytes that go into it. The collectives of DTensors count as well: a DTensor's operator is passed on
    until its local operators come. A backend that takes classic collectives past the dispatcher, as `shm` does, is not
    heard.
    """
    import torch

    dtensor = require("torch.distributed.tensor.DTensor")

    def passed(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(issubclass(kind, dtensor) for kind in types):
            return NotImplemented
        space, _, name = func.name().partition("::")
        # on GPUs a DTensor moves from one shard dimension to another by an operator of its own
        if ("c10d" in space or name == "shard_dim_alltoall") and not name.startswith(("wait_", "_wrap_")):
            flat = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a])]
            sizes = [t.numel() * t.element_size() for t in flat if isinstance(t, torch.Tensor)]
            if sizes:
                seen(name.rstrip("_").replace("allreduce", "all_reduce"), sizes[0])
        return func(*args, **kwargs)

    return _mode(passed)


def _mode(passed: Callable[[Any, Any, Any, Any], Any]) -> Any:
    base = require("torch.utils._python_dispatch.TorchDispatchMode")

    class Mode(base):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return passed(func, types, args, kwargs or {})

    return Mode()
