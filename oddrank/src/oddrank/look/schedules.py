"""Learning-rate schedules that step more often than their optimizer: in a loop over micro-batches, or once a rank."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pandas as pd
from torch.optim.lr_scheduler import LRScheduler

from oddrank.look.callables import line_of_program
from oddrank.look.steps import Steps

__all__ = ["TYPES", "Schedules", "hurried"]

TYPES = {"rank": "int64", "name": "str", "place": "str", "times": "int64", "updates": "int64"}
LEAST = 4  # optimizer steps


class Schedules:
    """Counts the steps of schedules.

    Args:
        steps: Counts the optimizers' steps.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._made: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listen in a block."""
        init, step = LRScheduler.__init__, LRScheduler.step

        @functools.wraps(init)
        def begin(schedule: Any, *args: Any, **kwargs: Any) -> None:
            init(schedule, *args, **kwargs)  # which steps once
            self._made[schedule] = [line_of_program(), 0, self._steps.updates]

        @functools.wraps(step)
        def count(schedule: Any, *args: Any, **kwargs: Any) -> None:
            known = self._made.get(schedule)
            if (
                known is not None and self._steps.updates > known[2]
            ):  # a run that goes on may wind it forward before
                known[1] += 1
            step(schedule, *args, **kwargs)

        with mock.patch.object(LRScheduler, "__init__", begin), mock.patch.object(LRScheduler, "step", count):
            yield

    def table(self) -> pd.DataFrame:
        """Make the table of them on one rank, with steps of optimizers since; its columns are `TYPES`, without rank."""
        rows = [
            (type(one).__name__, place, times, self._steps.updates - before)
            for one, (place, times, before) in self._made.items()
        ]
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])


def hurried(table: pd.DataFrame) -> list[str]:
    """Schedules that stepped at least twice for each step of an optimizer, each once.

    Args:
        table: Of all ranks, with the columns of `TYPES`.
    """
    often = table[(table["updates"] >= LEAST) & (table["times"] >= 2 * table["updates"])]
    return [
        f"{row.place}: {row.name} was stepped {row.times} times in {row.updates} optimizer steps, and ends as much"
        " earlier: a loop over micro-batches may do that, and accelerate, which steps it once for each rank"
        for row in often.drop_duplicates(["name", "place"]).itertuples(index=False, name="Row")
    ]
