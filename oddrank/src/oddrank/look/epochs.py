"""A DistributedSampler that shuffles every epoch alike, because the program does not call `set_epoch`."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pandas as pd
from torch.utils.data import DistributedSampler

from oddrank.look.callables import line_of_program
from oddrank.look.finding import Finding
from oddrank.look.steps import Steps

__all__ = ["TYPES", "Epochs", "repeated"]

TYPES = {"rank": "int64", "place": "str", "times": "int64"}


class Epochs:
    """Counts the epochs in which a sampler gave an order that it had given before, and the program trained.

    Args:
        steps: Counts the optimizer's steps; those of an evaluation are none.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._orders: weakref.WeakKeyDictionary[Any, Counter[tuple[int, int]]] = weakref.WeakKeyDictionary()
        self._places: dict[str, int] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listen in a block."""
        original = DistributedSampler.__iter__

        @functools.wraps(original)
        def begin(sampler: Any) -> Iterator[Any]:
            return self._each(sampler, original(sampler), line_of_program())

        with mock.patch.object(DistributedSampler, "__iter__", begin):
            yield

    def _each(self, sampler: Any, indices: Iterator[Any], place: str) -> Iterator[Any]:
        before = self._steps.updates
        try:
            yield from indices
        finally:
            if sampler.shuffle and self._steps.updates > before:
                orders = self._orders.setdefault(sampler, Counter())
                orders[sampler.seed, sampler.epoch] += 1
                times = max(orders.values())
                self._places[place] = max(self._places.get(place, 0), times)

    def table(self) -> pd.DataFrame:
        """Make the table of these orders on one rank; its columns are those of `TYPES`, without rank."""
        return pd.DataFrame(list(self._places.items()), columns=["place", "times"])


def repeated(table: pd.DataFrame) -> list[Finding]:
    """Samplers that gave one order in several epochs.

    Args:
        table: Of all ranks, with the columns of `TYPES`.
    """
    return [
        Finding(
            str(place),
            f"DistributedSampler gave the same order in {rows['times'].max()} epochs",
            "it shuffles by its seed and the number of the epoch, and nobody gives it that number",
            "call sampler.set_epoch(epoch) before each epoch",
        )
        for place, rows in table[table["times"] > 1].groupby("place", sort=False)
    ]
