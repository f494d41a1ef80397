"""What differs on one rank of a run: its compile cache, a slow compile, or a shorter batch."""

from __future__ import annotations

import copy
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from oddrank.counted import counted
from oddrank.record import install
from oddrank.record.compiles import Try

__all__ = ["Condition", "apply", "done", "shorter"]


@dataclass(frozen=True)
class Condition:
    """What differs on one rank, and the compile cache of each.

    Args:
        rank: The rank; -1 for none.
        delay_s: Seconds that its first compile takes longer.
        batch: The batch, counted from 1, of each DataLoader that has one row less there; 0 for none.
        caches: The folder of each rank's compile cache; empty for the one that the environment names.
    """

    rank: int = -1
    delay_s: float = 0.0
    batch: int = 0
    caches: tuple[str, ...] = ()


def apply(condition: Condition, folder: Path, rank: int) -> None:
    """Let the condition hold in this process; what it did goes to `condition.json`.

    Args:
        condition: What differs.
        folder: Where the file goes.
        rank: This process.
    """
    if condition.caches:  # torch reads it anew whenever it looks for its cache
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = condition.caches[rank]
        os.environ.pop("TRITON_CACHE_DIR", None)
    if rank != condition.rank:
        return
    me = os.getpid()

    def did(what: str) -> None:
        if os.getpid() == me:
            (folder / "condition.json").write_text(json.dumps(what), encoding="utf-8")

    if condition.delay_s:
        _slow(condition.delay_s, did)
    if condition.batch:
        _short(condition.batch, did)


def done(folder: Path) -> str:
    """What a condition did in a run, in words; '' where its moment never came."""
    try:
        return str(json.loads((folder / "condition.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return ""


def _slow(seconds: float, did: Callable[[str], None]) -> None:
    slept = False

    def sleep(_: Try) -> None:
        nonlocal slept
        if not slept:
            slept = True
            did(f"its first compile took {seconds:g} s longer")
            time.sleep(seconds)

    install().compiles.listeners.append(sleep)


def _short(number: int, did: Callable[[str], None]) -> None:
    batches = DataLoader.__iter__

    @functools.wraps(batches)
    def shortened(self: DataLoader) -> Iterator[Any]:
        for count, batch in enumerate(batches(self), 1):
            if count == number:
                batch, was = shorter(batch)
                if was > 1:
                    did(f"its batch {number} had {counted(was - 1, 'rows')}, the others {was}")
            yield batch

    DataLoader.__iter__ = shortened  # type: ignore[method-assign, assignment]


def shorter(batch: Any) -> tuple[Any, int]:
    """Take the last row off a batch.

    Args:
        batch: A tensor, or tensors in tuples, lists and mappings.

    Returns:
        The batch, and how many rows it had: 0 where it holds no tensor, 1 where it cannot be shorter.

    >>> shorter({"x": torch.zeros(4, 2), "y": [torch.zeros(4)]})[0]["y"][0].shape
    torch.Size([3])
    """
    rows = next((len(tensor) for tensor in _tensors(batch)), 0)
    return (_cut(batch, rows) if rows > 1 else batch), rows


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        if batch.dim():
            yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def _cut(batch: Any, rows: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[:-1] if batch.dim() and len(batch) == rows else batch
    if isinstance(batch, MutableMapping):  # a class of its own, as tokenizers return
        cut = copy.copy(batch)
        for key, part in batch.items():
            cut[key] = _cut(part, rows)
        return cut
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_cut(part, rows) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_cut(part, rows) for part in batch)
    return batch
