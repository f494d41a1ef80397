"""Inputs that a program says its ranks hold alike, as those of a tensor-parallel group do, compared between ranks.

`DTensor.from_local` with `Replicate()` enters DTensor, and so do the hooks of `parallelize_module`. Torch sends nothing
to check it.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch

from oddrank import torch_names
from oddrank.look import replicas
from oddrank.look.callables import line_of_program
from oddrank.look.finding import Finding
from oddrank.look.gradients import sketch_of
from oddrank.look.steps import Steps
from oddrank.look.values import leaves

__all__ = ["TYPES", "Entering", "unlike"]

# how a tensor enters a dimension of a mesh, and what it holds, where that was seen
TYPES = {
    "rank": "int64",
    "kind": "str",
    "place": "str",
    "dimension": "str",
    "ranks": "str",
    "number": "int64",
}
TYPES |= {"alike": "bool", "what": "str", "sketch": "str", "tolerance": "float64"}
ENTERS, GIVEN = "enters DTensor", "first input of a compiled call"
MOST = 16  # tensors at one line


class Entering:
    """Notes tensors that enter DTensor before the first recorded step, and the first input of each compiled call in it.

    Args:
        steps: Which step it is.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._rows: list[tuple[Any, ...]] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._first = 0
        self._undo = contextlib.ExitStack()

    def attach(self) -> None:
        """Listen from now on, where the program has imported DTensor."""
        if (point := torch_names.from_local_point()) is not None:
            original, replace = point

            @functools.wraps(original)
            def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
                tensor, mesh, placements, check, *_ = (*args, None, None, None, True)
                if not (check or self._steps.since_ns or torch.compiler.is_dynamo_compiling()):
                    self._note(tensor, mesh, placements)
                return original(ctx, *args, **kwargs)

            torch_names.hide_from_dynamo(forward.__code__)  # type: ignore[attr-defined]
            self._undo.enter_context(replace(forward))
            self._steps.given.append(self._given)

    def close(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    def _note(self, tensor: torch.Tensor, mesh: Any, placements: Any) -> None:
        with contextlib.suppress(Exception):  # the program goes on
            place, sketch = line_of_program(), None
            traced = torch_names.traces() or not replicas.readable(tensor)
            for dimension, ranks, alike in _dimensions(mesh, placements):
                number = self._counts[place, dimension]
                self._counts[place, dimension] += 1
                if number < MOST:
                    if alike and not traced and sketch is None:
                        sketch = sketch_of(tensor)
                    kept = _kept(sketch if alike else None, tensor.dtype)
                    self._rows.append((ENTERS, place, dimension, ranks, number, alike, _what(tensor), *kept))

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (self._rows and self._steps.recording):
            return
        self._first = self._first or self._steps.found
        if self._steps.found != self._first:
            return
        with contextlib.suppress(Exception):
            one = next((tensor for _, tensor in leaves([*args, *kwargs.values()], "")), None)
            if one is None or one.requires_grad or not replicas.readable(one.detach()):
                return
            number = self._counts[GIVEN, ""]
            self._counts[GIVEN, ""] += 1
            if number < MOST:
                kept = _kept(sketch_of(one), one.dtype)
                self._rows.append((GIVEN, "", "", "", number, False, _what(one), *kept))

    def table(self) -> pd.DataFrame:
        """Make the table of these tensors on one rank; its columns are those of `TYPES`, without rank."""
        return pd.DataFrame(self._rows, columns=[name for name in TYPES if name != "rank"])


def _dimensions(mesh: Any, placements: Any) -> Iterator[tuple[str, str, bool]]:
    """The dimensions of a mesh with several ranks: name, ranks along it, and whether a tensor is replicated there."""
    for i, (name, placement) in enumerate(
        zip(mesh.mesh_dim_names or range(mesh.ndim), placements, strict=True)
    ):
        ranks = replicas.members(mesh.get_group(i))  # without operators, which a graph would hold
        if len(ranks) > 1:
            yield str(name), ",".join(map(str, ranks)), placement.is_replicate()


def _what(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _kept(sketch: torch.Tensor | None, dtype: torch.dtype) -> tuple[str, float]:
    if sketch is None:
        return "", 0.0
    return json.dumps(sketch.tolist()), torch.finfo(dtype).eps ** 0.5 if dtype.is_floating_point else 0.0


def unlike(table: pd.DataFrame) -> list[Finding]:
    """Describe inputs that are taken for replicated and differ between ranks, each line once.

    Where a graph holds the calls of `from_local`, their values are not seen. Then first inputs of compiled calls are
    compared, if what enters first along that dimension of the mesh is replicated, and has their dtype and shape.

    Args:
        table: What all ranks noted, with the columns of `TYPES`.
    """
    enters = table[table["kind"] == ENTERS]
    found: dict[tuple[str, str], Finding] = {}
    seen = enters[enters["alike"] & (enters["sketch"] != "")]
    for (place, dimension, ranks, _), rows in seen.groupby(
        ["place", "dimension", "ranks", "number"], sort=False
    ):
        if sizes := _apart(rows, ranks):
            said = "a tensor enters DTensor here"
            found.setdefault((place, dimension), _finding(place, said, dimension, sizes))
    given = table[table["kind"] == GIVEN]
    for (dimension, ranks), rows in enters.groupby(["dimension", "ranks"], sort=False):
        first = rows.iloc[0]
        if not first["alike"] or (rows["sketch"] != "").any():
            continue
        for _, of in given[given["what"] == first["what"]].groupby("number"):
            if sizes := _apart(of[of["rank"].astype(str).isin(ranks.split(","))], ranks):
                place = str(first["place"])
                said = "what a compiled call is given enters DTensor here"
                found.setdefault((place, dimension), _finding(place, said, dimension, sizes))
    return list(found.values())


def _apart(rows: pd.DataFrame, ranks: str) -> str:
    """The 2-norms of a tensor by rank, where it differs between ranks; '' where it does not, or one has not seen it."""
    one = rows.drop_duplicates("rank")
    if len(one) < len(rows) or len(one) != len(ranks.split(",")):
        return ""
    held = {int(row.rank): json.loads(str(row.sketch)) for row in one.itertuples()}
    bound = float(one["tolerance"].max()) * max(numbers[0] for numbers in held.values())
    spread = [max(each) - min(each) for each in zip(*held.values(), strict=True)]
    if all(wide <= bound for wide in spread):
        return ""
    return ", ".join(f"{numbers[0]:.6g} on rank {rank}" for rank, numbers in sorted(held.items()))


def _finding(place: str, said: str, dimension: str, sizes: str) -> Finding:
    said += f", taken for replicated over dimension {dimension} of the mesh, and differs between its ranks"
    said += f" (2-norm {sizes})"
    why = "each of them computes its part of a layer from another input"
    fix = "give the ranks of a tensor-parallel group one batch: the sampler's rank is that along the data-parallel"
    fix += " dimension, and random numbers (dropout) have one seed; where each holds a part, use Shard() in place of"
    fix += " Replicate()"
    return Finding(place, said, why, fix)


torch_names.hide_from_dynamo(Entering._note.__code__, Entering._given.__code__, calls=True)
