"""Learning-rate schedules that step several times between two steps of an optimizer, as once for each rank."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import pandas as pd
from torch.optim.lr_scheduler import LRScheduler

from oddrank.look.callables import line_of_program
from oddrank.look.steps import Steps

__all__ = ["TYPES", "Schedules", "hurried"]

# steps of a schedule in a row, how often it made so many, how often it made others, and steps of optimizers meanwhile
TYPES = {"rank": "int64", "name": "str", "place": "str", "row": "int64", "often": "int64", "else": "int64"}
TYPES |= {"updates": "int64"}
LEAST = 3  # times that it does so


class _Made(NamedTuple):
    """A schedule, which may be gone: its class and line, the optimizers' steps before it, and its own by theirs."""

    name: str
    place: str
    before: int
    steps: Counter[int]


class Schedules:
    """Counts the steps of schedules.

    Args:
        steps: Counts the optimizers' steps.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._made: list[_Made] = []
        self._of: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listen in a block."""
        init, step = LRScheduler.__init__, LRScheduler.step

        @functools.wraps(init)
        def begin(schedule: Any, *args: Any, **kwargs: Any) -> None:
            init(schedule, *args, **kwargs)  # which steps once
            made = _Made(type(schedule).__name__, line_of_program(), self._steps.updates, Counter())
            self._of[schedule] = made
            self._made.append(made)

        @functools.wraps(step)
        def count(schedule: Any, *args: Any, **kwargs: Any) -> None:
            known = self._of.get(schedule)
            if (
                known is not None and self._steps.updates > known.before
            ):  # a resumed run may wind it forward before
                known.steps[self._steps.updates] += 1
            step(schedule, *args, **kwargs)

        with mock.patch.object(LRScheduler, "__init__", begin), mock.patch.object(LRScheduler, "step", count):
            yield

    def table(self) -> pd.DataFrame:
        """Make the table of them on one rank; its columns are those of `TYPES`, without rank."""
        rows = []
        for made in self._made:
            ((row, often),) = Counter(made.steps.values()).most_common(1) or [(0, 0)]
            others, updates = len(made.steps) - often, self._steps.updates - made.before
            rows.append((made.name, made.place, row, often, others, updates))
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])


def hurried(table: pd.DataFrame) -> list[str]:
    """Schedules that step several times in a row: more often than the optimizer, or once for each rank.

    Args:
        table: Of all ranks, with the columns of `TYPES`.
    """
    ranks = table["rank"].nunique()
    mine = table[(table["row"] > 1) & (table["often"] >= LEAST) & (table["often"] > 3 * table["else"])]
    mine = mine[(mine["row"] * mine["often"] > mine["updates"]) | (mine["row"] == ranks)]
    why = "accelerate does it once for each rank, and means the numbers of one process; a loop over micro-batches may"
    return [
        f"{place}: {name} steps {row} times in a row between optimizer steps, so it ends {row} times as early ({why})"
        for place, name, row in mine[["place", "name", "row"]].drop_duplicates().itertuples(index=False)
    ]
