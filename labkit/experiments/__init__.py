"""The experiments of the source documents' lists: each is a function of ranks and of the code under study.

Each topic declares its own in `course/<topic>/declared.py`, as data: the command line lists, parses and refuses
by it, and imports an experiment's module only to run it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import replace

from labkit import registry
from labkit.experiments.experiment import Experiment

__all__ = ["Experiment", "declared", "get"]


@functools.cache
def declared() -> Mapping[str, Experiment]:
    """Collect the experiments that the topics declare.

    Returns:
        Experiments by name, in the order of `labkit list`.

    >>> list(declared())[:2]
    ['cliff', 'collectives']
    """
    modules = [importlib.import_module(f"course.{topic}.declared") for topic in registry.declaring()]
    found = (value for module in modules for value in vars(module).values() if isinstance(value, Experiment))
    return {experiment.name: experiment for experiment in found}


def get(name: str) -> Experiment:
    """Look up an experiment without importing its module.

    Args:
        name: of an experiment, or for one test of a suite `suite/test`.

    Returns:
        The experiment; for a test, the suite with this test only.

    Raises:
        ValueError: there is no such experiment or test; the message names those that there are.

    >>> get("cliff").question
    'How can one decorator on the all-reduce make a compiled model slower than eager?'
    >>> get("break-it/digest").question
    'break-it: one element on rank 0, by 1e-6'
    """
    known = declared()
    suite, slash, part = name.partition("/")
    if suite.replace("_", "-") in known:  # a module's name
        suite = suite.replace("_", "-")
    if suite not in known:
        raise ValueError(f"unknown experiment {name!r}: there is {', '.join(known)}")
    experiment = known[suite]
    if not slash:
        return experiment
    if not experiment.parts:
        raise ValueError(f"{suite} is one experiment and has no {part!r}")
    if part not in experiment.parts:
        raise ValueError(f"unknown {suite} test {part!r}: there is {', '.join(experiment.parts)}")
    question = f"{suite}: {experiment.parts[part]}"
    return replace(experiment, name=f"{suite}/{part}", question=question, only=part, parts={})
