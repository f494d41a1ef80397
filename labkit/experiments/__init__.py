"""The experiments of the source documents' lists: each is a function of ranks and of the code under study."""

from __future__ import annotations

import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any

# every name here is a module with TITLE, QUESTION, SOURCE, run(ranks, ...) -> Report, LINK (the backend that `auto`
# means on a CPU), OPTIONS (what the command line may tell `run`) and, where it needs more than two ranks, RANKS;
# DEVICE, where there is one, is the device its programs are written for: what `auto` means, GPUs or not;
# RECORD, where there is one, is what a recording takes beyond `run`'s defaults;
# `passed(report)`, where there is one, is False for a report that makes a command fail. One that is a suite has PARTS,
# its tests by name: `suite/test` runs that one.
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
    "scale",
    "mesh_or_world",
    "wrong_group",
    "cold",
    "survival",
    "placements",
    "routes",
    "training",
    "break-it",
)

__all__ = ["NAMES", "get"]


def get(name: str) -> Any:
    """The experiment's module, or for a name with a slash one test of a suite. Raises ValueError naming what there is.

    >>> get("cliff").QUESTION
    'How does one decorator on the all-reduce cost half the speed?'
    >>> get("break-it/digest").QUESTION
    'break-it: one element on rank 0, by 1e-6'
    """
    suite, slash, part = name.partition("/")
    if suite not in NAMES and suite.replace("_", "-") in NAMES:  # a module's name
        suite = suite.replace("_", "-")
    if suite not in NAMES:
        raise ValueError(f"unknown experiment {name!r}: there is {', '.join(NAMES)}")
    module = importlib.import_module(f"labkit.experiments.{suite.replace('-', '_')}")
    if not slash:
        return module
    parts = getattr(module, "PARTS", None)
    if parts is None:
        raise ValueError(f"{suite} is one experiment and has no {part!r}")
    if part not in parts:
        raise ValueError(f"unknown {suite} test {part!r}: there is {', '.join(parts)}")
    kept = {word: getattr(module, word) for word in ("TITLE", "SOURCE", "LINK", "OPTIONS", "passed")}
    return SimpleNamespace(
        **kept, QUESTION=f"{suite}: {parts[part]}", run=partial(module.run, only=[part]), PARTS=None
    )
