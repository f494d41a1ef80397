"""A grid of ranks at work: for each collective and axis, who is in whose group, who sends to whom, who has what."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from labkit.lessons.shared import costs, sockets
from labkit.lessons.shared.costs import terms
from labkit.ranks import Ranks, here
from labkit.report import PerRank, Report, provenance
from labkit.torch_compat import renamed

__all__ = ["OPERATIONS", "WORLD", "ring_bytes", "run"]

TITLE = "Collectives along the axes of a mesh"
WORLD = "world"
PARTS = 4  # a rank's tensor is shown as the first number of each quarter
SETTLE_S = 0.02  # a peer's last acknowledgement may follow the end of a collective


def run(
    ranks: Ranks, shape: Sequence[int] = (2, 2), names: Sequence[str] = ("dp", "tp"), *, kib: int = 16
) -> Report:
    """Call every collective along every axis of a mesh and over the world, once, and count what passed the sockets.

    Before each call rank r has a tensor of `kib` KiB (float32) whose quarters hold 10 r, 10 r + 1, 10 r + 2, 10 r + 3.

    Tables: `results` (operation, axis, rank, group, before, after), where before and after are the first numbers of
    quarters of that size; `bytes` (operation, axis, source, target, bytes), measured, empty where no socket is
    used; `grid` (rank, axis, place, group, group_name). Raises ValueError for a shape that does not fit the ranks.

    >>> with Ranks(2, device="cpu", quiet=True) as ranks:
    ...     run(ranks, (2, 3))
    Traceback (most recent call last):
        ...
    ValueError: a mesh of 2 x 3 needs 6 ranks, and there are 2
    """
    world = ranks.world_size
    if len(shape) != len(names) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(
            f"a mesh needs a size above 0 and a name for each axis, got {tuple(shape)} and {tuple(names)}"
        )
    if prod(shape) != world:
        said = " x ".join(map(str, shape))
        raise ValueError(f"a mesh of {said} needs {prod(shape)} ranks, and there are {world}")
    if len({*names, WORLD}) != len(names) + 1:
        raise ValueError(f"axes need names of their own, other than {WORLD!r}, got {', '.join(names)}")
    if kib * 256 % (PARTS * world) or kib < 1:
        raise ValueError(f"{kib} KiB cannot be cut into {PARTS} equal parts on {world} ranks")
    found = ranks.run(_measure, tuple(shape), tuple(names), kib * 256)
    settings = {"backend": ranks.backend, "device": ranks.device, "shape": list(shape), "kib": kib}
    return _report(found, ranks.label, provenance(**settings))


def ring_bytes(operation: str, size: int, message: int) -> float:
    """The least bytes that a rank sends in a ring of `size` ranks, with `message` bytes on each before the call.

    >>> ring_bytes("all_reduce", 4, 1024)
    1536.0
    """
    if operation == "all_to_all":
        return (size - 1) / size * message
    # in a broadcast ranks send differently much
    return terms(operation, size, message)[1] if operation in costs.OPERATIONS else float("nan")


# --- on a rank ---


def _all_reduce(x: Any, group: Any) -> Any:
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y


def _all_gather(x: Any, group: Any) -> Any:
    y = x.new_empty(x.numel() * dist.get_world_size(group))
    renamed(dist, "all_gather_single", "all_gather_into_tensor")(y, x, group=group)
    return y


def _reduce_scatter(x: Any, group: Any) -> Any:
    y = x.new_empty(x.numel() // dist.get_world_size(group))
    renamed(dist, "reduce_scatter_single", "reduce_scatter_tensor")(y, x.clone(), group=group)
    return y


def _all_to_all(x: Any, group: Any) -> Any:
    y = x.new_empty(x.numel())
    dist.all_to_all_single(y, x, group=group)
    return y


def _broadcast(x: Any, group: Any) -> Any:
    y = x.clone()
    dist.broadcast(y, group=group, group_src=0)  # 0 in the group, not in the world
    return y


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
}


def _measure(shape: tuple[int, ...], names: tuple[str, ...], elements: int) -> dict[str, Any]:
    me = here()
    mesh = init_device_mesh(torch.device(me.device).type, shape, mesh_dim_names=names)
    coordinate = mesh.get_coordinate() or ()
    groups = {name: mesh.get_group(name) for name in names} | {WORLD: dist.group.WORLD}
    members = {name: dist.get_process_group_ranks(group) for name, group in groups.items()}
    places = {name: int(at) for name, at in zip(names, coordinate, strict=True)} | {WORLD: me.rank}
    quarter = elements // PARTS
    x = (torch.arange(PARTS, dtype=torch.float32, device=me.device) + 10 * me.rank).repeat_interleave(quarter)
    calls = []
    for operation, call in OPERATIONS.items():
        for axis, group in groups.items():
            call(x, group)  # the first call on a group may still connect
            _settle(x)
            before = sockets.connections()
            y = call(x, group)
            values = y[:: min(quarter, len(y))].tolist()  # also ends the wait, on a GPU
            time.sleep(SETTLE_S)
            calls.append(
                {
                    "operation": operation,
                    "axis": axis,
                    "before": [int(v) for v in x[::quarter].tolist()],
                    "after": [int(v) for v in values],
                    "sent": (before, sockets.connections()),
                }
            )
    names_of = {axis: group.group_name for axis, group in groups.items() if group is not None}
    return {"calls": calls, "groups": members, "places": places, "names": names_of}


def _settle(x: Any) -> None:
    """Nobody goes on while others still talk, and what a barrier sends is over when it is counted."""
    dist.barrier()
    if x.is_cuda:
        torch.cuda.synchronize()
    time.sleep(SETTLE_S)


# --- in the kernel ---


def _report(found: PerRank[dict[str, Any]], label: str, settings: dict[str, Any]) -> Report:
    grid, results, sent = [], [], []
    for rank, seen in found.items():
        for axis, group in seen["groups"].items():
            grid.append((rank, axis, seen["places"][axis], list(group), seen["names"][axis]))
        for call in seen["calls"]:
            group = list(seen["groups"][call["axis"]])
            results.append((call["operation"], call["axis"], rank, group, call["before"], call["after"]))
    for i, call in enumerate(found[0]["calls"]):
        looks = [{rank: seen["calls"][i]["sent"][when] for rank, seen in found.items()} for when in (0, 1)]
        for (source, target), count in sorted(sockets.sent_between(*looks).items()):
            sent.append((call["operation"], call["axis"], source, target, count))
    tables: dict[str, pd.DataFrame] = {
        "results": pd.DataFrame(results, columns=["operation", "axis", "rank", "group", "before", "after"]),
        "bytes": pd.DataFrame(sent, columns=["operation", "axis", "source", "target", "bytes"]),
        "grid": pd.DataFrame(grid, columns=["rank", "axis", "place", "group", "group_name"]),
    }
    notes = [] if sent else ["no byte passed a TCP socket between these ranks, so bytes are not known"]
    return Report(
        "mesh", TITLE, label, tables, [], settings, notes, "labkit.lessons.shared.grid_figures:figure"
    )
