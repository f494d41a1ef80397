"""Weights that a program keeps by name, as an average does, under names that torch.compile and DDP have changed."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import nn

from oddrank import places, torch_names
from oddrank.counted import counted
from oddrank.look import replicas
from oddrank.look.checkpoints import COMPILED, bare
from oddrank.look.finding import Finding
from oddrank.look.steps import wrapped

__all__ = ["TYPES", "Names", "kept"]

TYPES = {"rank": "int64", "kind": "str", "place": "str", "count": "int64", "theirs": "str", "ours": "str"}
TWICE, LEFT = "twice", "left out"
_CALLS = ("named_parameters", "state_dict")


class Names:
    """Notes where a program reads the names of a module's parameters, and what it keeps by such names."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, int], Callable[[], Any]] = {}
        self._began: dict[int, tuple[str, ...]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note them in a block; torch is as it was afterwards."""
        methods = {name: getattr(nn.Module, name) for name in _CALLS}
        for name, method in methods.items():
            setattr(nn.Module, name, wrapped(method, self._reads))
        try:
            yield
        finally:
            for name, method in methods.items():
                setattr(nn.Module, name, method)

    def _reads(self, method: Callable[..., Any], module: nn.Module, /, *args: Any, **options: Any) -> Any:
        self._note(module)
        return method(module, *args, **options)

    def _note(self, module: nn.Module) -> None:
        caller = sys._getframe(3)  # the wrapper's; parameters() and optimizers ask for names, too
        if not places.is_library(caller.f_code.co_filename):
            place = places.place(caller.f_code.co_filename, caller.f_lineno)
            self._read[place, id(module)] = weakref.ref(module)

    def begin(self) -> None:
        """Take the fingerprints of what is kept by name before the first step; what is read before it is set up."""
        self._began = {id(held): prints for held in _by_name() if (prints := _prints(held))}
        self._read.clear()

    def table(self, rank: int) -> pd.DataFrame:
        """Make the table of what is kept under changed names; its columns are those of `TYPES`."""
        rows: dict[tuple[Any, ...], None] = {}
        held = _by_name()
        for one in held:
            twice = {bare(key): key for key in one if COMPILED not in key.split(".")}
            for key in one:
                other = twice.get(bare(key)) if COMPILED in key.split(".") else None
                if other is not None and one[key].shape == one[other].shape:
                    rows[rank, TWICE, "", len(one), key, other] = None
                    break
        still = [one for one in held if id(one) in self._began and self._began[id(one)] == _prints(one)]
        for (place, _), module in list(self._read.items()):
            named = dict(module().named_parameters()) if module() is not None else {}
            rows |= {(rank, LEFT, place, *found): None for one in still if (found := _unlike(one, named))}
        return pd.DataFrame(list(rows), columns=list(TYPES)).astype(TYPES)


def _unlike(held: dict[str, torch.Tensor], named: dict[str, Any]) -> tuple[int, str, str] | None:
    """Whether a dict has a module's parameters, each under another name: their number, and names of both sides."""
    theirs, ours = {bare(key): key for key in held}, {bare(key): key for key in named}
    same = [key for key in theirs if key in ours and held[theirs[key]].shape == named[ours[key]].shape]
    if not same or len(same) < len(ours) or any(key in named for key in held):
        return None
    both = ((held[theirs[key]], named[ours[key]]) for key in same)
    if all(replicas.fingerprint(old) == replicas.fingerprint(new) for old, new in both):
        return None  # nothing was trained
    return len(same), theirs[same[0]], ours[same[0]]


def _by_name() -> list[dict[str, torch.Tensor]]:
    """The dicts of this process that have tensors by the name of a module in a module, apart from those of modules."""
    objects = gc.get_objects()
    modules = [one for one in objects if issubclass(type(one), nn.Module)]
    own = {id(held) for one in modules for held in vars(one).values()}
    return [
        one
        for one in objects
        if type(one) in (dict, OrderedDict)
        and any(type(key) is str and "." in key for key in one)
        and id(one) not in own
        and all(type(key) is str and isinstance(value, torch.Tensor) for key, value in one.items())
    ]


def _prints(held: dict[str, torch.Tensor]) -> tuple[str, ...]:
    with torch.no_grad():
        return tuple(replicas.fingerprint(one) for one in held.values() if replicas.readable(one))


def kept(table: pd.DataFrame) -> list[Finding]:
    """Describe what all ranks noted, each once.

    Args:
        table: What all ranks noted.
    """
    found = []
    for row in table.drop_duplicates([name for name in TYPES if name != "rank"]).itertuples():
        why = f"it has `{row.theirs}`, and `{row.ours}`"
        if row.kind == TWICE:
            said = f"a dict of {counted(row.count, 'tensors')} has weights under two names, that of torch.compile and"
            said += " their own"
            fix = "take all names from the module that torch.compile was given"
        else:
            said = f"names are read here of which a dict has none: it keeps {row.count} of these parameters under"
            said += " other names, and did not change while these were trained"
            why = f"the dict has `{row.theirs}`, the module `{row.ours}`"
            fix = "where it is an average, read the names of the module that torch.compile and DDP were given; where"
            fix += " it is a copy of the start, nothing"
        found.append(Finding(str(row.place), said, why, fix))
    return found


# a compiled function may read names between its regions, where Dynamo compiles what is called
torch_names.hide_from_dynamo(Names._reads.__code__)
torch_names.hide_from_dynamo(Names._note.__code__, calls=True)
