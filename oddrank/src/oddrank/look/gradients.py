"""Gradients that torch takes for replicated, and those of parameters, compared between ranks.

`to_local()` and `full_tensor()` leave DTensor. Torch takes the gradient that comes back for replicated where the
DTensor is replicated or partial and `grad_placements` does not say otherwise: it has to be the same on all ranks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from oddrank import torch_names
from oddrank.look import replicas
from oddrank.look.callables import line_of_program
from oddrank.look.finding import Finding

__all__ = ["TYPES", "Leaving", "compared", "of_parameters", "reasons", "sketch_of", "untold", "wrong"]

TYPES = {
    "rank": "int64",
    "kind": "str",
    "name": "str",
    "place": "str",
    "dimension": "str",
    "ranks": "str",
    "number": "int64",
    "placements": "str",
    "own": "str",
    "sketch": "str",
    "tolerance": "float64",
}
PARAMETER = "parameter"
MOST = 64  # calls at one line
_CHUNK = 1 << 18
_SIGNS = (7, 13, 19)


class Leaving:
    """Notes the gradients that come back to `to_local()` and `full_tensor()` before the first recorded step.

    Not in the recorded steps: to sum up a gradient takes operators, which would stand among those of the program.

    Args:
        on: Whether to note them now.
    """

    def __init__(self, on: Callable[[], bool]) -> None:
        self._on = on
        self._rows: list[tuple[Any, ...]] = []
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._undo = contextlib.ExitStack()

    def attach(self) -> None:
        """Wrap both halves of `to_local`, where DTensor is imported. Dynamo leaves them in its graphs as they are."""
        for kind, original, replace in torch_names.to_local_points():
            if original is not None:
                around = self._forward if kind == "forward" else self._backward
                self._undo.enter_context(replace(_around(original, around)))

    def close(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    def _forward(self, original: Callable[..., Any], ctx: Any, tensor: Any, *args: Any) -> Any:
        self._leave(ctx, tensor)
        return original(ctx, tensor, *args)

    def _leave(self, ctx: Any, tensor: Any) -> None:
        # a parameter's own gradient is compared after the last step: the program may reduce it by hand
        if self._on() and not tensor.is_leaf:
            ctx.oddrank_left = line_of_program(), _called()

    def _backward(self, original: Callable[..., Any], ctx: Any, gradient: Any) -> Any:
        self._note(ctx, gradient)
        return original(ctx, gradient)

    def _note(self, ctx: Any, gradient: Any) -> None:
        left: tuple[str, str] | None = getattr(ctx, "oddrank_left", None)
        if left and gradient is not None and self._on():
            with contextlib.suppress(Exception):  # the backward goes on
                self._keep(*left, gradient, torch_names.assumed_placements(ctx))

    def _keep(self, place: str, call: str, gradient: torch.Tensor, assumed: Any) -> None:
        if assumed is None:
            return
        mesh, placements = assumed
        placed, dtype = _words(placements), gradient.dtype
        if type(gradient) is not torch.Tensor or torch_names.traces():
            if any(placement.is_replicate() for placement in placements):
                self._rows.append((call, call, place, "", "", 0, placed, "", None, dtype))
            return
        sketch = None
        for dimension, ranks in _replicated(mesh, placements):
            number = self._counts[place, call, dimension]
            self._counts[place, call, dimension] += 1
            if number < MOST:
                sketch = sketch_of(gradient) if sketch is None else sketch
                self._rows.append((call, call, place, dimension, ranks, number, placed, "", sketch, dtype))

    def table(self, rank: int) -> pd.DataFrame:
        """Make the table of these gradients and of those of parameters; its columns are those of `TYPES`."""
        rows = [(rank, *row[:-2], *_kept(*row[-2:])) for row in [*self._rows, *of_parameters()]]
        return pd.DataFrame(rows, columns=list(TYPES)).astype(TYPES)


def _around(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return original(*args, **kwargs)
        return around(original, *(signature.bind(*args, **kwargs).args if kwargs else args))

    torch_names.hide_from_dynamo(call.__code__)  # type: ignore[attr-defined]
    return call


def _called() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in ("to_local", "full_tensor"):
        frame = frame.f_back
    return f"{frame.f_code.co_name}()" if frame is not None else "to_local()"


def of_parameters() -> Iterator[tuple[Any, ...]]:
    """Describe the gradients that parameters have now: rows of `TYPES`, without the rank."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return
    everybody = tuple(range(dist.get_world_size()))
    seen: set[int] = set()
    with torch.no_grad():
        for kind, name, ranks, tensor, _ in replicas.everything():
            gradient: Any = tensor.grad if tensor.is_leaf else None
            if gradient is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            placements = getattr(gradient, "placements", None)
            if placements is None:
                if kind != replicas.SHARDS and replicas.readable(gradient):
                    agree = ",".join(map(str, ranks or everybody))
                    yield PARAMETER, name, "", "", agree, 0, "", "", sketch_of(gradient), gradient.dtype
                continue
            own, placed = _words(getattr(tensor, "placements", ())), _words(placements)
            local = gradient.to_local()
            for dimension, agree in _replicated(gradient.device_mesh, placements):
                sketch = sketch_of(local) if replicas.readable(local) else None
                yield PARAMETER, name, "", dimension, agree, 0, placed, own, sketch, local.dtype
            for dimension, placement in zip(_dimensions(gradient.device_mesh), placements, strict=True):
                if placement.is_partial():
                    yield PARAMETER, name, "", dimension, "", 0, placed, own, None, local.dtype


def _dimensions(mesh: Any) -> list[str]:
    return list(map(str, mesh.mesh_dim_names or range(mesh.ndim)))


def _replicated(mesh: Any, placements: Any) -> Iterator[tuple[str, str]]:
    """The dimensions of a mesh over which a tensor is replicated, each with the ranks along it."""
    here = mesh.get_coordinate()
    for i, (name, placement) in enumerate(zip(_dimensions(mesh), placements, strict=True)):
        if here is not None and placement.is_replicate() and mesh.size(i) > 1:
            at = tuple(slice(None) if i == j else here[j] for j in range(mesh.ndim))
            yield name, ",".join(map(str, sorted(mesh.mesh[at].tolist())))


def _words(placements: Any) -> str:
    return f"[{', '.join(map(repr, placements))}]" if placements else ""


def sketch_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm of a tensor, and its sums under three patterns of signs, on its own device."""
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        index = torch.arange(min(_CHUNK, max(len(flat), 1)), device=flat.device) * 2654435761
        signs = torch.stack([((index >> shift) & 1) * 2 - 1 for shift in _SIGNS]).float()
        sums = torch.zeros(1 + len(_SIGNS), device=flat.device)
        for part in flat.split(_CHUNK):
            wide = part.float()
            sums[0] += wide.square().sum()
            sums[1:] += signs[:, : len(wide)] @ wide
        sums[0] = sums[0].sqrt()
        return sums


def _kept(sketch: torch.Tensor | None, dtype: torch.dtype) -> tuple[str, float]:
    if sketch is None or not dtype.is_floating_point:
        return "", 0.0
    return json.dumps(sketch.tolist()), torch.finfo(dtype).eps ** 0.5


def _apart(table: pd.DataFrame) -> Iterator[tuple[Any, dict[int, float], bool]]:
    """Each gradient that several ranks should have alike: its first row, norms by rank, and whether it differs."""
    held = table[table["sketch"] != ""]
    by = ["kind", "name", "place", "dimension", "ranks", "number"]
    for _, rows in held.groupby(by, sort=False):
        one = rows.drop_duplicates("rank")
        first = one.iloc[0]
        if len(one) < len(rows) or len(one) != len(first["ranks"].split(",")):  # two models may share a name
            continue
        sketches = {int(row.rank): json.loads(str(row.sketch)) for row in one.itertuples()}
        norms = {rank: numbers[0] for rank, numbers in sketches.items()}
        finite = [norm for norm in norms.values() if math.isfinite(norm)]
        bound = float(first["tolerance"]) * max(finite, default=0.0)
        spread = [_spread(each) for each in zip(*sketches.values(), strict=True)]
        yield first, norms, any(wide > bound for wide in spread)


def _spread(numbers: Sequence[float]) -> float:
    """How far numbers are apart; none where all are the same, NaN and infinities included.

    >>> _spread([1.0, 3.0]), _spread([math.nan, 1.0]), _spread([math.nan, math.nan])
    (2.0, inf, 0.0)
    """
    if len(set(map(str, numbers))) == 1:
        return 0.0
    return max(numbers) - min(numbers) if all(map(math.isfinite, numbers)) else math.inf


def wrong(table: pd.DataFrame) -> list[Finding]:
    """Describe the gradients that torch takes for replicated and that differ between ranks, each line once.

    Of a parameter's gradient it is said where the parameter is sharded over that dimension of the mesh: torch takes a
    slice of it. A replicated parameter shows it by its values.

    Args:
        table: What all ranks noted.
    """
    found: dict[tuple[str, ...], Finding] = {}
    for first, norms, differs in _apart(table):
        if not differs or not first["dimension"] or (first["kind"] == PARAMETER and _like_own(first)):
            continue
        sizes = ", ".join(f"{norm:.3g} on rank {rank}" for rank, norm in sorted(norms.items()))
        over = f"replicated over dimension {first['dimension']} of the mesh"
        if first["kind"] == PARAMETER:
            said = (
                f"the gradient of {first['name']} is {over}, {first['placements']}, and differs between ranks"
            )
            why = f"the parameter is {first['own']}: of each rank's gradient only its own slice is used"
            fix = "sum the gradient over that dimension, where each rank has a part; else give all ranks the same input"
        else:
            said = f"the gradient that comes back to {first['kind']} is taken for {over}, and differs between ranks"
            why = "each rank goes on with its own gradient, and that of the others is lost"
            fix = "where each rank computes a part, grad_placements with Partial() for that dimension; else give all"
            fix += " ranks the same input"
        key = (first["kind"], first["name"], first["place"], first["dimension"])
        found.setdefault(key, Finding(str(first["place"]), f"{said} (2-norm {sizes})", why, fix))
    return list(found.values())


def _like_own(row: Any) -> bool:
    return bool(row["own"] == row["placements"])


def compared(table: pd.DataFrame) -> str:
    """Say in words how many gradients of `to_local` and `full_tensor` were compared; '' for none."""
    count = sum(first["kind"] != PARAMETER for first, _, _ in _apart(table))
    return f"{count} gradients that to_local and full_tensor take for replicated" if count else ""


def untold(table: pd.DataFrame) -> list[tuple[str, str]]:
    """List the calls of `to_local` and `full_tensor` of which no gradient was seen: a graph holds both halves.

    Args:
        table: What all ranks noted.

    Returns:
        Call with its place, and the placements that their gradients are given.
    """
    calls = table[table["kind"] != PARAMETER]
    known = calls[calls["sketch"] != ""]
    rest = calls[~calls["place"].isin(known["place"])].drop_duplicates(["kind", "place"])
    return [
        (f"{row.kind} at {row.place}" if row.place else str(row.kind), str(row.placements))
        for row in rest.itertuples()
    ]


def reasons(table: pd.DataFrame, names: list[str]) -> list[str]:
    """Say of parameters that differ between ranks what their gradients are.

    Args:
        table: What all ranks noted.
        names: Names of parameters.
    """
    mine = table[(table["kind"] == PARAMETER) & table["name"].isin(names)]
    partial = mine[(mine["sketch"] == "") & (mine["ranks"] == "")]
    said = [
        f"the gradient of {_list(rows['name'])} is {placed}, where the parameter is {own}: over dimension"
        f" {rows['dimension'].iloc[0]} of the mesh each rank holds a part, and grad.to_local() gives that part;"
        " grad.redistribute(placements=parameter.placements) sums them"
        for (placed, own), rows in partial.groupby(["placements", "own"], sort=False)
    ]
    apart = {differs: [] for differs in (True, False)}  # type: dict[bool, list[str]]
    for first, _, differs in _apart(mine):
        apart[differs].append(str(first["name"]))
    if apart[True]:
        said.append(f"the gradients of {_list(apart[True])} differ, too")
    if alike := [name for name in apart[False] if name not in apart[True]]:
        said.append(
            f"the gradients of {_list(alike)} are equal in the last recorded step: something else wrote to them"
        )
    return said


def _list(names: Any) -> str:
    every = list(dict.fromkeys(map(str, names)))
    return ", ".join(every[:4]) + (f" and {len(every) - 4} more" if len(every) > 4 else "")


torch_names.hide_from_dynamo(Leaving._forward.__code__, Leaving._backward.__code__)
torch_names.hide_from_dynamo(Leaving._leave.__code__, Leaving._note.__code__, calls=True)
