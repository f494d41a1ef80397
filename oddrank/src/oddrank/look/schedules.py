"""Learning-rate schedules that step several times between two steps of an optimizer, as once for each rank."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
from torch.optim.lr_scheduler import LRScheduler

from oddrank.look.callables import line_of_program
from oddrank.look.steps import Steps, wrapped
from oddrank.torch_names import hide_from_dynamo

__all__ = ["TYPES", "Schedules", "hurried"]

# steps of a schedule in a row, how often it made so many, how often it made others, and steps of optimizers meanwhile
TYPES = {"rank": "int64", "name": "str", "place": "str", "row": "int64", "often": "int64", "else": "int64"}
TYPES |= {"updates": "int64"}
LEAST = 3  # times that it does so


class _Made(NamedTuple):
    """A schedule, which may be gone: its class and line, the optimizers' steps before it, and its own in a row."""

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
        self._of: weakref.WeakKeyDictionary[Any, tuple[_Made, int]] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listen in a block."""
        init = LRScheduler.__init__

        def begin(init: Callable[..., None], schedule: Any, *args: Any, **kwargs: Any) -> None:
            init(schedule, *args, **kwargs)
            made = _Made(type(schedule).__name__, line_of_program(), self._steps.updates, Counter())
            self._of[schedule] = made, schedule.last_epoch
            self._made.append(made)

        LRScheduler.__init__ = wrapped(init, begin)  # type: ignore[method-assign, assignment]
        self._steps.updated.append(self._updated)
        try:
            yield
        finally:
            LRScheduler.__init__ = init  # type: ignore[method-assign]
            self._steps.updated.remove(self._updated)

    def _updated(self) -> None:
        """Note how far schedules have gone since the last call; Dynamo would trace a wrapper of their `step`."""
        with contextlib.suppress(Exception):
            for schedule, (made, before) in list(self._of.items()):
                # a resumed run may wind it forward before the first one
                if schedule.last_epoch > before and self._steps.updates > made.before + 1:
                    made.steps[schedule.last_epoch - before] += 1
                self._of[schedule] = made, schedule.last_epoch

    def table(self) -> pd.DataFrame:
        """Make the table of them on one rank; its columns are those of `TYPES`, without rank."""
        rows = []
        for made in self._made:
            ((row, often),) = made.steps.most_common(1) or [(0, 0)]
            others, updates = made.steps.total() - often, self._steps.updates - made.before
            rows.append((made.name, made.place, row, often, others, updates))
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])


def hurried(table: pd.DataFrame) -> list[str]:
    """Schedules that step several times in a row: more often than the optimizer, or once for each rank.

    Args:
        table: Of all ranks, with the columns of `TYPES`.
    """
    ranks = table["rank"].nunique()
    mine = table[(table["row"] > 1) & (table["often"] >= LEAST) & (table["often"] >= 3 * table["else"])]
    mine = mine[(mine["row"] * mine["often"] > mine["updates"]) | (mine["row"] == ranks)]
    why = "accelerate does it once for each rank, and means the numbers of one process; a loop over micro-batches may"
    return [
        f"{place}: {name} steps {row} times in a row between optimizer steps, so it ends {row} times as early ({why})"
        for place, name, row in mine[["place", "name", "row"]].drop_duplicates().itertuples(index=False)
    ]


hide_from_dynamo(Schedules._updated.__code__, calls=True)
