"""Parameters and buffers that ranks should have alike, compared by fingerprint after the last recorded step."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import torch_compat

__all__ = ["KINDS", "TYPES", "compared", "differing", "fingerprint", "take", "wrong"]

TYPES = {
    "rank": "int64",
    "kind": "str",
    "name": "str",
    "ranks": "str",
    "shape": "str",
    "dtype": "str",
    "fingerprint": "str",
    "norm": "float64",
}
# what is compared, and why a difference is one
KINDS = {
    "parameters under DDP": "DDP makes them equal at the start and averages their gradients: was one written to,"
    " or its gradient left out (a hook, no_sync, ignored parameters)?",
    "parameters that fully_shard did not shard": "nothing reduces their gradients: were they made after fully_shard,"
    " or are they in ignored_params? Add them first, then call fully_shard",
    "replicated DTensors": "their gradients were not reduced over this dimension of the mesh, or ranks began with"
    " other values",
    "buffers": "nothing keeps them equal between forwards; DDP sends rank 0's before the next one",
}
OTHER = "plain parameters of modules that are in neither DDP nor fully_shard"
_CHUNK = 1 << 18  # elements at a time
_Found = tuple[str, str, tuple[int, ...], torch.Tensor]


def take(rank: int) -> pd.DataFrame:
    """Take the fingerprints of what this process has, and should have like other ranks.

    The modules are all that are alive. Parameters and buffers inside `DistributedDataParallel` and plain ones inside
    `fully_shard` belong to it; of a DTensor those ranks are compared that differ in a replicated dimension of its mesh.

    Args:
        rank: This process.

    Returns:
        A row for each, and one of kind `OTHER` for each plain parameter that is not compared. `fingerprint` is of the
        bits, `norm` is the 2-norm, and `ranks` lists those that should agree.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return pd.DataFrame([], columns=list(TYPES)).astype(TYPES)
    rows: dict[int, tuple[Any, ...]] = {}
    with torch.no_grad():
        for kind, name, ranks, tensor in _everything():
            if id(tensor) in rows or torch_compat.is_fake(tensor) or tensor.is_meta:
                continue
            local = getattr(tensor, "to_local", lambda tensor=tensor: tensor)()
            told = (fingerprint(local), _norm(local)) if kind in KINDS and _plain(local) else ("", 0.0)
            about = (",".join(map(str, ranks)), str(tuple(local.shape)), str(local.dtype).partition(".")[2])
            rows[id(tensor)] = (rank, kind if told[0] else OTHER, name, *about, *told)
    return pd.DataFrame(list(rows.values()), columns=list(TYPES)).astype(TYPES)


def fingerprint(tensor: torch.Tensor) -> str:
    """Sum up a tensor's bits, weighted by their position, on its own device.

    It is for accidents and no cryptographic hash.

    >>> w = torch.arange(6.0)
    >>> fingerprint(w) == fingerprint(w.clone()), fingerprint(w) == fingerprint(w.flip(0))
    (True, False)
    """
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = flat.view(torch.int32) if len(flat) % 4 == 0 else flat
    weights = torch.arange(1, min(_CHUNK, max(len(words), 1)) + 1, device=flat.device) * 2654435761
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in words.split(_CHUNK):
        total = total * 6364136223846793005 + (part * weights[: len(part)]).sum()
    return f"{int(total) % 2**64:016x}"


def differing(table: pd.DataFrame) -> pd.DataFrame:
    """Select what should be alike and is not.

    Args:
        table: What all ranks took.

    Returns:
        Columns kind, name, ranks, shape and one with the norm for each rank, in the order of the first rank.
    """
    found = []
    held = table[table["kind"].isin(KINDS)]
    for (kind, name, ranks, shape), rows in held.groupby(["kind", "name", "ranks", "shape"], sort=False):
        prints = (
            rows.sort_values("fingerprint").groupby("rank")["fingerprint"].agg(list)
        )  # two models may share a name
        if len(prints) == len(ranks.split(",")) and len({tuple(mine) for mine in prints}) > 1:
            norms = {f"norm, rank {r}": norm for r, norm in rows.groupby("rank")["norm"].first().items()}
            found.append({"kind": kind, "name": name, "ranks": ranks, "shape": shape, **norms})
    return pd.DataFrame(found, columns=None if found else ["kind", "name", "ranks", "shape"])


def compared(table: pd.DataFrame) -> dict[str, str]:
    """Say in words what was compared, for each kind, and how many of it differ; last, what was not compared.

    Args:
        table: What all ranks took.
    """
    found, apart = {}, differing(table)
    held = table.drop_duplicates(["kind", "name", "ranks"])
    for kind in KINDS:
        names = apart[apart["kind"] == kind]["name"].tolist()
        count = max(int((held["kind"] == kind).sum()), len(names))
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            found[kind] = (
                f"{len(names)} of {count} {kind} differ: {', '.join(names[:4])}{more} ({KINDS[kind]})"
            )
        elif count:
            found[kind] = f"{count} {kind} are equal"
    left = int((held["kind"] == OTHER).sum())
    return found | ({OTHER: f"{left} {OTHER} were not compared"} if left else {})


def wrong(table: pd.DataFrame) -> list[str]:
    """The sentences of `compared` about what differs and should not; buffers may differ between two forwards."""
    kinds = set(differing(table)["kind"]) - {"buffers"}
    return [said for kind, said in compared(table).items() if kind in kinds]


def _everything() -> Iterator[_Found]:
    """Every parameter and buffer of all modules that are alive: kind, name, the ranks that should agree, tensor."""
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    for root in modules:
        if id(root) not in inner and "_modules" in vars(root):
            yield from _within(root, "", "", (), set())


def _within(
    module: nn.Module, path: str, owner: str, ranks: tuple[int, ...], seen: set[int]
) -> Iterator[_Found]:
    if id(module) in seen:
        return
    seen.add(id(module))
    if isinstance(module, DistributedDataParallel):
        owner, ranks = "parameters under DDP", _members(module.process_group)
        seen |= {id(p) for n, p in module.module.named_parameters() if n in module.parameters_to_ignore}
    elif sharded := _sharded(module):
        owner, ranks = "parameters that fully_shard did not shard", sharded
    for tensors, buffers in ((module._parameters, False), (module._buffers, True)):
        for name, tensor in tensors.items():
            if tensor is None or id(tensor) in seen:
                continue
            name = f"{path}.{name}".lstrip(".")
            if hasattr(tensor, "placements"):
                if alike := _replicated(tensor):
                    yield "replicated DTensors", name, alike, tensor
            elif len(ranks) > 1:
                yield "buffers" if buffers else owner, name, ranks, tensor
            elif not buffers:
                yield OTHER, name, (), tensor
    for name, child in module._modules.items():
        if child is not None:
            wraps = name == "_orig_mod" or (name == "module" and isinstance(module, DistributedDataParallel))
            yield from _within(child, path if wraps else f"{path}.{name}", owner, ranks, seen)


def _norm(tensor: torch.Tensor) -> float:
    wide = tensor if tensor.dtype in (torch.bfloat16, torch.float16, torch.float32) else tensor.double()
    return float(
        torch.linalg.vector_norm(wide, dtype=max(wide.dtype, torch.float32, key=lambda t: t.itemsize))
    )


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided


def _sharded(module: nn.Module) -> tuple[int, ...]:
    """The ranks over which `fully_shard` has sharded a module's parameters; () where it is none of its modules."""
    known = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if known is None or not isinstance(module, known):
        return ()
    meshes = [p.device_mesh for p in module.parameters() if hasattr(p, "placements")]
    smallest = min(meshes, key=lambda mesh: mesh.size(), default=None)
    return () if smallest is None else tuple(sorted(smallest.mesh.flatten().tolist()))


def _replicated(tensor: Any) -> tuple[int, ...]:
    """The ranks that should hold the same local tensor of a DTensor; () where each holds another one."""
    mesh, here = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if here is None or any(placement.is_partial() for placement in tensor.placements):
        return ()
    at = tuple(slice(None) if p.is_replicate() else i for p, i in zip(tensor.placements, here, strict=True))
    ranks = tuple(sorted(mesh.mesh[at].flatten().tolist()))
    return ranks if len(ranks) > 1 else ()


def _members(group: Any) -> tuple[int, ...]:
    return tuple(sorted(dist.get_process_group_ranks(group)))
