"""Checkpoints that a program loads with `strict=False` and of which little or nothing arrives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from torch import nn

from oddrank.look.callables import line_of_program
from oddrank.look.finding import Finding
from oddrank.look.steps import wrapped

__all__ = ["TYPES", "Loads", "bare", "lost", "renamed"]

TYPES = {"rank": "int64", "place": "str", "module": "str", "given": "int64", "matched": "int64"}
TYPES |= {"missing": "str", "unexpected": "str"}
COMPILED = "_orig_mod"
# what torch.compile, DDP, activation checkpointing and FSDP1 call the module that they wrap
WRAPPERS = (COMPILED, "module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


class Loads:
    """Notes calls of `load_state_dict` that left keys out without an error."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], None] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note them in a block; torch is as it was afterwards."""
        load = nn.Module.load_state_dict
        nn.Module.load_state_dict = wrapped(load, self._load)  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.load_state_dict = load  # type: ignore[method-assign]

    def _load(self, load: Callable[..., Any], module: nn.Module, /, *args: Any, **options: Any) -> Any:
        state = args[0] if args else options.get("state_dict")
        given = list(state) if isinstance(state, Mapping) else []
        found = load(module, *args, **options)
        missing, unexpected = getattr(found, "missing_keys", None), getattr(found, "unexpected_keys", None)
        if missing and unexpected:
            same = {bare(key) for key in missing} & {bare(key) for key in unexpected}
            if same or len(unexpected) == len(given):
                lost = [
                    [key for key in keys if not same or bare(key) in same] for keys in (missing, unexpected)
                ]
                name = type(module).__qualname__.rpartition("<locals>.")[2]
                matched = len(given) - len(unexpected)
                row = (line_of_program(), name, len(given), matched, lost[0][0], lost[1][0])
                self._rows[row] = None
        return found

    def table(self) -> pd.DataFrame:
        """Make the table of these loads on one rank; its columns are those of `TYPES`, without rank."""
        return pd.DataFrame(list(self._rows), columns=[name for name in TYPES if name != "rank"])


def lost(table: pd.DataFrame) -> list[Finding]:
    """Describe the loads of all ranks, each once.

    Args:
        table: What all ranks noted.
    """
    found = []
    for row in table.drop_duplicates([name for name in TYPES if name != "rank"]).itertuples():
        said = f"load_state_dict of {row.module} loaded {row.matched} of {row.given} keys, and raised nothing"
        said += " (strict=False)"
        why = f"the checkpoint has `{row.unexpected}`, the module has `{row.missing}`"
        fix = "compare the names, and load with strict=True"
        if bare(row.missing) == bare(row.unexpected):
            fix = "save and load the module that torch.compile and DDP were given, or rename the keys; then load with"
            fix += " strict=True"
        found.append(Finding(row.place, said, why, fix))
    return found


def renamed(asked: Iterable[str], given: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Pair the names that a checkpoint lacks with those that it has, where only names of wrappers differ.

    Args:
        asked: Names that are asked for.
        given: Names in the checkpoint.

    Returns:
        The name in the checkpoint by the one asked for, and the wrappers in which they differ.

    >>> renamed(["a.weight"], ["a._orig_mod.weight", "b"])
    ({'a.weight': 'a._orig_mod.weight'}, ['_orig_mod'])
    """
    have = dict.fromkeys(given)
    known = {bare(key): key for key in have}
    pairs = {key: known[bare(key)] for key in asked if key not in have and bare(key) in known}
    parts = [(key.split("."), other.split(".")) for key, other in pairs.items()]
    return pairs, [one for one in WRAPPERS if any(a.count(one) != b.count(one) for a, b in parts)]


def bare(key: str) -> str:
    """Return a key without the names that wrappers add.

    >>> bare("module.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    return ".".join(part for part in key.split(".") if part not in WRAPPERS)
