"""Gradients that torch.distributed.pipelining divides at each `schedule.step`, though earlier calls had done so."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any

import pandas as pd

from oddrank import torch_names
from oddrank.look.callables import line_of_program
from oddrank.look.finding import Finding
from oddrank.look.steps import Steps

__all__ = ["TYPES", "Scaling", "rescaled"]

TYPES = {"rank": "int64", "place": "str", "factor": "int64", "times": "int64", "steps": "int64"}


class Scaling:
    """Counts how often the gradients of a pipeline's stage are divided before one optimizer step.

    Args:
        steps: Which step it is.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._held: weakref.WeakKeyDictionary[Any, tuple[int, weakref.ref[Any], int]] = (
            weakref.WeakKeyDictionary()
        )
        self._found: dict[tuple[str, int], dict[int, int]] = {}
        self._undo = contextlib.ExitStack()

    def attach(self) -> None:
        """Listen from now on, where the program has imported torch.distributed.pipelining."""
        if (point := torch_names.pipeline_scaling()) is not None:
            original, replace = point

            @functools.wraps(original)
            def scale_grads(stage: Any, factor: int) -> None:
                with contextlib.suppress(Exception):  # the program goes on
                    self._scales(stage, factor)
                original(stage, factor)

            self._undo.enter_context(replace(scale_grads))

    def close(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    def _scales(self, stage: Any, factor: int) -> None:
        gradient = next((p.grad for p in stage.submod.parameters() if p.grad is not None), None)
        if factor == 1 or gradient is None:
            return
        step, before, times = self._held.get(stage, (0, lambda: None, 0))
        kept = step == self._steps.found and before() is gradient  # a cleared gradient is another tensor
        self._held[stage] = self._steps.found, weakref.ref(gradient), times + 1 if kept else 1
        if kept:
            most = self._found.setdefault((line_of_program(), factor), {})
            most[self._steps.found] = max(most.get(self._steps.found, 0), times + 1)

    def table(self) -> pd.DataFrame:
        """Make the table of such calls on one rank; its columns are those of `TYPES`, without rank."""
        rows = [(place, factor, max(by.values()), len(by)) for (place, factor), by in self._found.items()]
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])


def rescaled(table: pd.DataFrame) -> list[Finding]:
    """Describe such calls; stages that call alike at several lines are told together.

    Args:
        table: What all ranks noted, with the columns of `TYPES`.
    """
    found = []
    for (times, factor), rows in table.groupby(["times", "factor"], sort=False):
        said = f"schedule.step ran {times} times before one optimizer.step, and divided the gradients by {factor} each"
        said += f" time: those of its first call are divided by {factor**times}, in place of {factor}"
        why = "scale_grads=True divides all that a gradient holds by the number of microbatches"
        fix = "make the schedule with scale_grads=False, and divide the gradients once before optimizer.step; or give"
        fix += " one schedule.step all microbatches"
        found.append(Finding(", ".join(rows["place"].unique()), said, why, fix))
    return found
