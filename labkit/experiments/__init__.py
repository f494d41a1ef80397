"""The experiments of the source documents' lists: each is a function of ranks and of the code under study."""

from __future__ import annotations

import importlib
from types import ModuleType

# every name here is a module with TITLE, QUESTION, SOURCE, run(ranks, ...) -> Report, LINK (the backend that `auto`
# means on a CPU) and OPTIONS (what the command line may tell `run`)
NAMES = (
    "cliff",
    "collectives",
    "eager_trap",
    "overlap",
    "comm_passes",
    "divergence",
    "guards",
    "depth",
    "drift",
    "odd_shape",
)

__all__ = ["NAMES", "get"]


def get(name: str) -> ModuleType:
    """The experiment's module. Raises ValueError naming what there is.

    >>> get("cliff").QUESTION
    'How does one decorator on the all-reduce cost half the speed?'
    """
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}: there is {', '.join(NAMES)}")
    return importlib.import_module(f"labkit.experiments.{name}")
