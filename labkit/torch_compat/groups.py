"""Process groups: c10d's own, the operators of functional collectives, stores, and what eager collectives ask."""

from __future__ import annotations

import bisect
import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from labkit.torch_compat.versions import find, replaced, require


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


def functional_op(name: str, namespace: str = "_c10d_functional") -> Any:
    """Return the operator of a functional collective, without its wrapper: 'all_reduce', 'wait_tensor'."""
    return require(f"torch.ops.{namespace}.{name}")


def world_name() -> str:
    """Return the name by which a functional operator knows the default process group."""
    return require("torch.distributed.distributed_c10d._get_default_group")().group_name


def process_groups() -> list[Any]:
    """Return every process group that is up on this rank."""
    return list(require("torch.distributed.distributed_c10d._world").pg_map)


def group_members() -> dict[str, tuple[int, ...]]:
    """Return the ranks of every process group that is up on this rank, by the group's name."""
    dist: Any = sys.modules.get("torch.distributed")
    if not (dist and dist.is_available() and dist.is_initialized()):
        return {}
    try:
        return {
            str(group.group_name): tuple(dist.get_process_group_ranks(group)) for group in process_groups()
        }
    except (KeyError, RuntimeError, ValueError):  # a group is being made or destroyed
        return {}


def default_store() -> Any:
    """Return the store that the default process group was made with."""
    return require("torch.distributed.distributed_c10d._get_default_store")()


def fake_store() -> Any:
    """Make a store for the 'fake' backend, whose collectives return at once and move nothing."""
    return require("torch.testing._internal.distributed.fake_pg.FakeStore")()


def flight_record(stacks: bool = True) -> list[dict[str, Any]]:
    """Read the collectives that torch's flight recorder holds.

    Args:
        stacks: with the Python stack of each call. They are left out before Dynamo is imported: torch would import it
            to name their lines.

    Returns:
        The entries, oldest first; those of collectives that have ended say `retired`. Empty where this torch does not
        record. The recorder may leave out what has ended, but never does so for gloo.
    """
    stacks = stacks and "torch._dynamo" in sys.modules
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    dumps = [find("torch._C._distributed_c10d._dump_fr_trace")]
    # NCCL's groups have a recorder of their own, which only builds with CUDA know
    dumps.append(getattr(require("torch._C._distributed_c10d"), "_dump_nccl_trace", None))
    for dump in dumps:
        for entry in [] if dump is None else pickle.loads(dump(True, stacks)).get("entries", []):
            key = tuple(entry.get(part) for part in ("time_created_ns", "pg_id", "profiling_name"))
            found.setdefault(key, entry)
    return sorted(found.values(), key=lambda entry: entry.get("time_created_ns", 0))


def groups_by_time() -> Callable[[int, int], str]:
    """Return a function that names the process group whose collective was called between two times.

    The profiler does not say the group of a collective; the flight recorder does, of the last calls (256 on ranks of
    labkit), and of none over a backend in Python. Where the program has one group, it is that one.

    Returns:
        A function of two times in ns of `time.monotonic_ns()`. It returns the group's name and members, such as
        '3: 0, 1', or '' where the group is not known.
    """
    named = {name: f"{name}: {', '.join(map(str, ranks))}" for name, ranks in group_members().items()}
    if len(named) < 2:
        return lambda start, end: next(iter(named.values()), "")
    epoch = time.time_ns() - time.monotonic_ns()
    noted = [
        (entry["time_created_ns"] - epoch, named.get(entry["process_group"][0], ""))
        for entry in flight_record(stacks=False)
    ]

    def group_of(start: int, end: int) -> str:
        first = bisect.bisect_left(noted, (start, ""))
        return noted[first][1] if first < len(noted) and noted[first][0] <= end else ""

    return group_of


def not_in_flight_record(backend: str) -> None:
    """Keep torch's flight recorder off the groups of a backend that is written in Python.

    It can take no record from them. Torch 2.15 hooks itself into each group of a backend that keeps no record of its
    own, asks C++ for the backend's name, and raises "Could not find the default backend type" where the backend is a
    subclass of ProcessGroup.
    """
    # older ones hook into no group
    find("torch.distributed.distributed_c10d._FR_SELF_RECORDING_BACKENDS", set(), since="2.15").add(backend)


def replace_process_group(kind: type) -> None:
    """Make c10d build its process groups from this subclass of ProcessGroup."""
    # this builds them, from the class that the next name has
    require("torch.distributed.distributed_c10d._new_process_group_helper")
    replaced("torch.distributed.distributed_c10d.ProcessGroup", kind).start()


def replace_backend(name: str, create: Callable[..., Any]) -> None:
    """Make c10d create a registered third-party backend with another function.

    Args:
        name: of the backend.
        create: the function.
    """
    plugins = require("torch.distributed.Backend._plugins")
    plugins[name.upper()] = plugins[name.upper()]._replace(creator_fn=create)


@contextlib.contextmanager
def on_eager_collective(seen: Callable[[str, Any], None]) -> Iterator[None]:
    """Call `seen(name, group)` in a block before each eager collective, and each `get_world_size`, starts."""
    c10d = require("torch.distributed.distributed_c10d")
    usual = require("torch.distributed.distributed_c10d._rank_not_in_group")

    def asked(group: Any) -> bool:  # what each of them asks first
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename != c10d.__file__:  # what Dynamo puts in between
            frame = frame.f_back
        name, caller = frame.f_code.co_name, frame.f_back.f_code.co_filename
        inner = name == "get_world_size" and caller.startswith(os.path.dirname(c10d.__file__))
        if not inner and not name.startswith(
            ("get_rank", "get_backend", "_", "isend", "irecv", "send", "recv")
        ):
            seen(name, group)
        return usual(group)

    asks_first = require("torch.compiler.disable")(asked)
    with replaced("torch.distributed.distributed_c10d._rank_not_in_group", asks_first):
        yield


def local_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Make a gloo backend among the ranks of one machine; two ranks are connected when they first talk.

    Args:
        store: through which the ranks find each other.
        rank: of this process.
        size: how many ranks there are.
        timeout: of its collectives.
    """
    options = require("torch.distributed.ProcessGroupGloo._Options")()
    options._timeout = timeout
    device = require("torch.distributed.ProcessGroupGloo.create_device")
    options._devices = [device(hostname="127.0.0.1", lazy_init=True)]
    return require("torch.distributed.ProcessGroupGloo")(store, rank, size, options)
