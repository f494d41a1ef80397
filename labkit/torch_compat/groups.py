"""Process groups, their stores, the operators of functional collectives, and the calls that pass the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from oddrank.torch_names import find, require


def functional_collectives() -> Any:
    """Return the module of functional collectives, whose name in torch is private; `funcol` is the same."""
    return require("torch.distributed._functional_collectives")


_mended: list[Any] = []  # a library's kernels are gone when it is


def gather_cuda_over_gloo() -> None:
    """Let functional all-gathers take CUDA tensors where gloo moves them, once in a process.

    torch sends them through gloo's coalesced all-gather, which reads the GPU's memory as if it were the host's, and the
    process dies of SIGSEGV (pytorch/pytorch#152645). Gloo's own all-gather copies through the host; here it takes over.
    """
    if _mended:
        return
    import torch

    resolve = require("torch._C._distributed_c10d._resolve_process_group")
    register = require("torch._C._distributed_c10d._register_work")

    def gathered(source: Any, size: int, name: Any, out: Any = None) -> Any:
        target = source.new_empty((source.shape[0] * size, *source.shape[1:])) if out is None else out
        register(target, resolve(name)._allgather_base(target, source.contiguous()))
        return target

    def coalesced(sources: list[Any], size: int, name: Any) -> list[Any]:
        return [gathered(source, size, name) for source in sources]

    library = torch.library.Library("_c10d_functional", "IMPL", "CUDA")
    library.impl(require("torch.ops._c10d_functional.all_gather_into_tensor.default"), gathered)
    library.impl(
        require("torch.ops._c10d_functional.all_gather_into_tensor_out.default"),
        lambda s, n, g, *, out: gathered(s, n, g, out),
    )
    library.impl(require("torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default"), coalesced)
    _mended.append(library)


def functional_op(name: str) -> Any:
    """Return the operator of a functional collective, without its wrapper: 'all_reduce', 'wait_tensor'."""
    return require(f"torch.ops._c10d_functional.{name}")


def world_name() -> str:
    """Return the name by which a functional operator knows the default process group."""
    return require("torch.distributed.distributed_c10d._get_default_group")().group_name


def fake_store() -> Any:
    """Make a store for the 'fake' backend, whose collectives return at once and move nothing."""
    return require("torch.testing._internal.distributed.fake_pg.FakeStore")()


def not_in_flight_record(backend: str) -> None:
    """Keep torch's flight recorder off the groups of a backend that is written in Python.

    It can take no record from them. Torch 2.15 hooks itself into each group of a backend that keeps no record of its
    own, asks C++ for the backend's name, and raises "Could not find the default backend type" where the backend is a
    subclass of ProcessGroup.
    """
    # older ones hook into no group
    find("torch.distributed.distributed_c10d._FR_SELF_RECORDING_BACKENDS", set(), since="2.15").add(backend)


def local_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Make a gloo backend among the ranks of one machine; two ranks are connected when they first talk."""
    options = require("torch.distributed.ProcessGroupGloo._Options")()
    options._timeout = timeout
    device = require("torch.distributed.ProcessGroupGloo.create_device")
    options._devices = [device(hostname="127.0.0.1", lazy_init=True)]
    return require("torch.distributed.ProcessGroupGloo")(store, rank, size, options)


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
