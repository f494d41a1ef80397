"""Forwards of modules that run in Python, outside of all that is compiled: how often, by their code."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from oddrank import torch_names
from oddrank.look.callables import is_torchs
from oddrank.record import install

if TYPE_CHECKING:
    from oddrank.look.steps import Steps

__all__ = ["TYPES", "Forwards"]

TYPES = {"rank": "int64", "file": "str", "line": "int64", "func": "str", "calls": "int64", "steps": "int64"}
BETWEEN = 0  # in place of the number of a step


class Forwards:
    """Counts the calls of modules outside of compiled calls, by their class and the step that they belong to.

    What is called with gradients on belongs to the step that it is in, or that begins next.

    Args:
        steps: Counts the steps.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._last = steps.options.skip + steps.options.steps
        self._calls: Counter[tuple[type[nn.Module], int]] = Counter()
        steps.around.hears = self._called

    def _called(self, module: nn.Module) -> None:
        steps = self._steps
        if "forward" in vars(module):  # a function of the module's own, which may be compiled
            return
        step = steps.found if steps.open else steps.found + 1
        if not steps.open and (steps.options.step or not torch.is_grad_enabled()):
            step = BETWEEN
        if step > self._last and self._trains:
            steps.around.hears = None
            return
        self._calls[type(module), step] += 1

    @property
    def _trains(self) -> bool:
        return bool(self._steps.updates or self._steps.options.step)

    def table(self) -> pd.DataFrame:
        """Make the table of them on one rank; its columns are those of `TYPES`, without rank.

        `steps` is the number of recorded steps that have these calls; 0 where nothing is trained, and the calls are all
        since the first compiled one. The first step of a run has calls before that, which nobody counts.
        """
        first = max(self._steps.options.skip, 1)
        recorded = range(first + 1, min(self._steps.found, self._last) + 1) if self._trains else None
        sources = install().compiles.sources
        found: Counter[tuple[str, int, str]] = Counter()
        for (kind, step), calls in self._calls.items():
            if (recorded is None or step in recorded) and (code := _runs(kind)) is not None:
                inside = sources.inside(code.co_filename, code.co_firstlineno)
                named = inside is not None and inside.name.rpartition(".")[2] == code.co_name
                line = inside.line if inside is not None and named else code.co_firstlineno
                found[code.co_filename, line, code.co_qualname.rpartition("<locals>.")[2]] += calls
        rows = [(*place, calls, len(recorded or ())) for place, calls in found.items()]
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])


def _runs(kind: type[nn.Module]) -> Any:
    """The code of a class's `forward`; None where that is torch's or compiled."""
    fn: Any = kind.forward
    while fn is not None:
        if torch_names.is_compiled(fn):
            return None
        fn = getattr(fn, "__wrapped__", None)
    fn = inspect.unwrap(kind.forward)
    code = getattr(fn, "__code__", None)
    return None if code is None or is_torchs(code.co_filename) else code
