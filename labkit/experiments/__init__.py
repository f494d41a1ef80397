"""The experiments of the source documents' lists: each is a function of ranks and of the code under study."""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.experiment import Experiment
from labkit.experiments.registry import EXPERIMENTS

NAMES = tuple(EXPERIMENTS)

__all__ = ["EXPERIMENTS", "NAMES", "Experiment", "get"]


def get(name: str) -> Experiment:
    """What is known of an experiment, or for a name with a slash of one test of a suite; its module is not imported.

    Raises ValueError naming what there is.

    >>> get("cliff").question
    'How does one decorator on the all-reduce cost half the speed?'
    >>> get("break-it/digest").question
    'break-it: one element on rank 0, by 1e-6'
    """
    suite, slash, part = name.partition("/")
    if suite.replace("_", "-") in NAMES:  # a module's name
        suite = suite.replace("_", "-")
    if suite not in NAMES:
        raise ValueError(f"unknown experiment {name!r}: there is {', '.join(NAMES)}")
    experiment = EXPERIMENTS[suite]
    if not slash:
        return experiment
    if not experiment.parts:
        raise ValueError(f"{suite} is one experiment and has no {part!r}")
    if part not in experiment.parts:
        raise ValueError(f"unknown {suite} test {part!r}: there is {', '.join(experiment.parts)}")
    question = f"{suite}: {experiment.parts[part]}"
    return replace(experiment, name=f"{suite}/{part}", question=question, only=part, parts={})
