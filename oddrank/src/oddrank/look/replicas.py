"""Parameters and buffers that ranks should have alike, compared by fingerprint after the last recorded step.

Of a plain parameter nothing says that ranks should have it alike. Where it was equal on all of them before the first
step, and no constant, it is taken for a copy.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

from oddrank import torch_names
from oddrank.counted import counted

__all__ = [
    *("KINDS", "SHARDS", "TYPES"),
    *(
        "begin",
        "allowed",
        "compared",
        "differing",
        "everything",
        "fingerprint",
        "left_out",
        "living",
        "local_part",
        "members",
        "readable",
        "sharded",
        "take",
        "wrong",
    ),
]

TYPES = {
    "rank": "int64",
    "kind": "str",
    "name": "str",
    "ranks": "str",
    "shape": "str",
    "dtype": "str",
    "fingerprint": "str",
    "norm": "float64",
    "first": "str",
    "why": "str",
}
STARTED = "plain parameters that were equal on all ranks before the first step"
DDP = "parameters under DDP"
# what is compared, and why a difference is one
KINDS = {
    DDP: "DDP makes them equal at the start and averages their gradients: was one written to,"
    " or its gradient left out (a hook, no_sync, ignored parameters)?",
    "parameters that fully_shard did not shard": "nothing reduces their gradients: were they made after fully_shard,"
    " or are they in ignored_params? Add them first, then call fully_shard",
    "replicated DTensors": "their gradients were not reduced over this dimension of the mesh, or ranks began with"
    " other values",
    STARTED: "nothing keeps them equal: where they are copies, sum or average their gradients over the ranks, and draw"
    " the same random numbers (dropout) for what is replicated",
    "buffers": "nothing keeps them equal between forwards; DDP sends rank 0's before the next one, unless"
    " broadcast_buffers=False",
}
PARTS = "ranks exchange data (all_to_all, messages): experts and stages that began equal may differ, copies must not"
OTHER = "plain parameters in neither DDP nor fully_shard"
FSDP1, _IN_FSDP1 = "parameters under FSDP1", "_fsdp_wrapped_module"
SHARDS = "sharded DTensors"
_CHUNK = 1 << 18  # elements at a time
_WEIGHT, _FACTOR = 2654435761, 6364136223846793005  # of an element, and of what comes before a chunk
_CONSTANT = "constant "
_Found = tuple[str, str, tuple[int, ...], torch.Tensor, int]
First = dict[int, tuple[Any, str]]  # by the id of a parameter: a weak reference to it, and its fingerprint


def begin() -> First:
    """Take the fingerprints of plain parameters before the first step, for `take`."""
    found: First = {}
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        with torch.no_grad():
            for kind, _, _, tensor, _ in everything():
                if kind == OTHER and readable(tensor) and tensor.numel():
                    bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                    bits = bits.reshape(tensor.numel(), -1)  # float8 has no ==
                    said = _CONSTANT if bool((bits == bits[0]).all()) else ""
                    found[id(tensor)] = weakref.ref(tensor), said + fingerprint(tensor)
    return found


def take(rank: int, first: First | None = None, reasons: Mapping[int, str] | None = None) -> pd.DataFrame:
    """Take the fingerprints of what this process has, and should have like other ranks.

    The modules are all that are alive. Parameters and buffers inside `DistributedDataParallel` and plain ones inside
    `fully_shard` belong to it; of a DTensor those ranks are compared that differ in a replicated dimension of its mesh.

    Args:
        rank: This process.
        first: What `begin` found.
        reasons: Why gradients were not averaged, by the id of a DDP module.

    Returns:
        A row for each, and one of kind `OTHER` for each plain parameter. `fingerprint` is of the bits, `norm` is the
        2-norm, `ranks` lists those that should agree, `first` is a plain parameter's fingerprint before the first step,
        and `why` is of `reasons`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return pd.DataFrame([], columns=list(TYPES)).astype(TYPES)
    rows: dict[int, tuple[Any, ...]] = {}
    everybody = tuple(range(dist.get_world_size()))
    with torch.no_grad():
        for kind, name, ranks, tensor, ddp in everything():
            if kind == SHARDS or id(tensor) in rows or torch_names.is_fake(tensor) or tensor.is_meta:
                continue
            held, before = (first or {}).get(id(tensor), (lambda: None, ""))
            before = before if kind == OTHER and held() is tensor else ""
            local = local_part(tensor)
            told = (
                (fingerprint(local), _norm(local))
                if (kind in KINDS or before) and _plain(local)
                else ("", 0.0)
            )
            agree = ",".join(map(str, everybody if before else ranks))
            about = (agree, str(tuple(local.shape)), str(local.dtype).partition(".")[2])
            why = (reasons or {}).get(ddp, "") if kind == DDP else ""
            rows[id(tensor)] = (rank, kind if told[0] else OTHER, name, *about, *told, before, why)
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
    if words.is_cpu:  # in numpy it takes a third, and is no operator of a recorded step
        numbers, known = words.numpy(), 0
        for at in range(0, len(numbers), _CHUNK):
            part = numbers[at : at + _CHUNK]
            known = known * _FACTOR + int((part * _weights()[: len(part)]).sum())
        return f"{known % 2**64:016x}"
    weights = torch.arange(1, min(_CHUNK, max(len(words), 1)) + 1, device=flat.device) * _WEIGHT
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in words.split(_CHUNK):
        total = total * _FACTOR + (part * weights[: len(part)]).sum()
    return f"{int(total) % 2**64:016x}"


@functools.cache
def _weights() -> np.ndarray:
    return np.arange(1, _CHUNK + 1, dtype=np.int64) * _WEIGHT


def differing(table: pd.DataFrame) -> pd.DataFrame:
    """Select what should be alike and is not.

    Args:
        table: What all ranks took.

    Returns:
        Columns kind, name, ranks, shape and one with the norm for each rank, in the order of the first rank.
    """
    found, table = [], _started(table)
    held = table[table["kind"].isin(KINDS)]
    for (kind, name, ranks, shape), rows in held.groupby(["kind", "name", "ranks", "shape"], sort=False):
        prints = (
            rows.sort_values("fingerprint").groupby("rank")["fingerprint"].agg(list)
        )  # two models may share a name
        if len(prints) == len(ranks.split(",")) and len({tuple(mine) for mine in prints}) > 1:
            norms = {f"norm, rank {r}": norm for r, norm in rows.groupby("rank")["norm"].first().items()}
            found.append({"kind": kind, "name": name, "ranks": ranks, "shape": shape, **norms})
    return pd.DataFrame(found, columns=None if found else ["kind", "name", "ranks", "shape"])


def compared(
    table: pd.DataFrame,
    exchanges: bool = False,
    gradients: Callable[[list[str]], list[str]] = lambda names: [],
) -> dict[str, str]:
    """Say in words what was compared, for each kind, and how many of it differ.

    Args:
        table: What all ranks took.
        exchanges: Whether ranks exchange data, as experts and stages do that each rank holds for itself.
        gradients: Says of parameters that differ what their gradients are.
    """
    found, apart, table = {}, differing(table), _started(table)
    held = table.drop_duplicates(["kind", "name", "ranks"])
    for kind in KINDS:
        names = apart[apart["kind"] == kind]["name"].tolist()
        count = max(int((held["kind"] == kind).sum()), len(names))
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            mine = table[(table["kind"] == kind) & table["name"].isin(names)]
            known = mine[mine["why"] != ""]
            also = [*_beside_shards(table, names), *_constants(table)] if kind == STARTED else []
            usual = PARTS if kind == STARTED and exchanges else KINDS[kind]
            why = list(known["why"].unique()) + [usual] * (set(names) > set(known["name"]) or known.empty)
            why += gradients([name for name in names if name not in set(known["name"])])
            found[kind] = (
                f"{len(names)} of {counted(count, kind)} {'differs' if len(names) == 1 else 'differ'}:"
                f" {', '.join(names[:4])}{more} ({'; '.join([*why, *also])})"
            )
        elif count:
            found[kind] = counted(count, f"{kind} are equal")
    return found


def left_out(table: pd.DataFrame) -> list[str]:
    """Say which parameters were not compared, and how many.

    Args:
        table: What all ranks took.
    """
    started = _started(table)
    names = {str(name) for name in started[started["kind"] == OTHER]["name"]}
    inside = {name for name in names if _IN_FSDP1 in name}
    return [
        counted(len(of), f"{kind} were not compared")
        for kind, of in ((FSDP1, inside), (OTHER, names - inside))
        if of
    ]


def _started(table: pd.DataFrame) -> pd.DataFrame:
    """The table, with another kind for plain parameters that were equal on all ranks before the first step.

    A constant is left out: parts of a bias that begins with zeros are equal, too.
    """
    alike = [
        at
        for rows in _alike_at_first(table)
        for at in rows.index
        if _CONSTANT not in str(rows["first"].iloc[0])
    ]
    return table.assign(kind=table["kind"].mask(table.index.isin(alike), STARTED))


def _alike_at_first(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    plain = table[(table["kind"] == OTHER) & (table["first"] != "")]
    for (_, ranks, _), rows in plain.groupby(["name", "ranks", "shape"], sort=False):
        began = rows.sort_values("first").groupby("rank")["first"].agg(tuple)
        if began.nunique() == 1 and len(began) == len(ranks.split(",")):
            yield rows


def _beside_shards(table: pd.DataFrame, names: list[str]) -> list[str]:
    """Name those parameters that may be shards, too: another one of their module differed before the first step."""
    began = table[table["kind"].isin([OTHER, STARTED]) & (table["first"] != "")]
    alike = {str(rows["name"].iloc[0]) for rows in _alike_at_first(began.assign(kind=OTHER))}
    modules = {name.rpartition(".")[0] for name in began["name"] if name not in alike}
    found = [name for name in names if name.rpartition(".")[0] in modules]
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    said = f"{', '.join(found[:4])}{more} may be shards, as other parameters of their modules are"
    return [said] if found else []


def _constants(table: pd.DataFrame) -> list[str]:
    """Name the plain parameters that began as one constant on all ranks and differ."""
    apart = [
        rows
        for rows in _alike_at_first(table)
        if rows.groupby("rank")["fingerprint"].agg(tuple).nunique() > 1
    ]
    names = [str(rows["name"].iloc[0]) for rows in apart if _CONSTANT in str(rows["first"].iloc[0])]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    differ = "differs" if len(names) == 1 else "differ"
    said = f"of those that began as a constant, {', '.join(names[:4])}{more} {differ}"
    return [f"{said}: shards may, copies must not"] if names else []


def wrong(
    table: pd.DataFrame,
    exchanges: bool = False,
    gradients: Callable[[list[str]], list[str]] = lambda names: [],
) -> list[str]:
    """The sentences of `compared` about what differs and should not, which buffers and what ranks own may."""
    kinds = set(differing(table)["kind"]) - {"buffers"} - ({STARTED} if exchanges else set())
    return [said for kind, said in compared(table, exchanges, gradients).items() if kind in kinds]


def allowed(
    table: pd.DataFrame,
    exchanges: bool = False,
    gradients: Callable[[list[str]], list[str]] = lambda names: [],
) -> list[str]:
    """The other sentences of `compared` about what differs."""
    kinds, bad = set(differing(table)["kind"]), wrong(table, exchanges, gradients)
    told = compared(table, exchanges, gradients).items()
    return [said for kind, said in told if kind in kinds and said not in bad]


def everything() -> Iterator[_Found]:
    """Find parameters and buffers: kind, name, the ranks that should agree, tensor, and the id of the DDP around it."""
    roots = sorted(living(), key=lambda root: isinstance(root, GraphModule))
    found, held = [], set[int]()  # type: list[tuple[_Found, str]], set[int]
    for root in roots:  # the graph of a compiled optimizer holds parameters of the model, by other names
        own = [one for one in _within(root, "", "", (), set(), 0)]
        found += [
            (one, _title(root)) for one in own if not (isinstance(root, GraphModule) and id(one[3]) in held)
        ]
        held |= {id(one[3]) for one in own}
    titles: dict[tuple[str, str], set[str]] = {}
    for (kind, name, *_), title in found:
        titles.setdefault((kind, name), set()).add(title)
    for (kind, name, ranks, tensor, ddp), title in found:
        apart = len(titles[kind, name]) > 1  # modules that share names, as the two of a GAN
        yield kind, f"{title}.{name}" if apart else name, ranks, tensor, ddp


def _title(root: Any) -> str:
    """The class of a module inside of its wrappers."""
    while (inner := vars(root)["_modules"].get("_orig_mod")) is not None:
        root = inner
    return _title(root.module) if isinstance(root, DistributedDataParallel) else type(root).__name__


def living() -> list[nn.Module]:
    """Return the modules of this process that are inside of no other one."""
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    return [root for root in modules if id(root) not in inner and "_modules" in vars(root)]


def _within(
    module: nn.Module, path: str, owner: str, ranks: tuple[int, ...], seen: set[int], ddp: int
) -> Iterator[_Found]:
    if id(module) in seen:
        return
    seen.add(id(module))
    if isinstance(module, DistributedDataParallel):
        owner, ranks, ddp = DDP, members(module.process_group), id(module)
        seen |= {id(p) for n, p in module.module.named_parameters() if n in module.parameters_to_ignore}
    elif over := sharded(module):
        owner, ranks = "parameters that fully_shard did not shard", over
    for tensors, buffers in ((module._parameters, False), (module._buffers, True)):
        for name, tensor in tensors.items():
            if tensor is None or id(tensor) in seen:
                continue
            name = f"{path}.{name}".lstrip(".")
            if hasattr(tensor, "placements"):
                alike = _replicated(tensor)
                yield "replicated DTensors" if alike else SHARDS, name, alike, tensor, ddp
            elif len(ranks) > 1:
                yield "buffers" if buffers else owner, name, ranks, tensor, ddp
            elif not buffers:
                yield OTHER, name, (), tensor, ddp
    for name, child in module._modules.items():
        if child is not None:
            wraps = name == "_orig_mod" or (name == "module" and isinstance(module, DistributedDataParallel))
            yield from _within(child, path if wraps else f"{path}.{name}", owner, ranks, seen, ddp)


def _norm(tensor: torch.Tensor) -> float:
    wide = tensor if tensor.dtype in (torch.bfloat16, torch.float16, torch.float32) else tensor.double()
    return float(
        torch.linalg.vector_norm(wide, dtype=max(wide.dtype, torch.float32, key=lambda t: t.itemsize))
    )


def local_part(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a DTensor, without gradient; any other tensor itself."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def readable(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has data that a fingerprint can be taken of."""
    return _plain(tensor) and not tensor.is_meta  # a fake tensor has a type of its own


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided


def sharded(module: nn.Module) -> tuple[int, ...]:
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


def members(group: Any) -> tuple[int, ...]:
    """Return the ranks of a process group, in order."""
    try:
        return tuple(sorted(dist.get_process_group_ranks(group)))
    except KeyError:  # the program has destroyed the group, and not yet freed what used it
        return ()
