"""Exercises: the reader's code runs on the ranks and is judged by what it does and what the compiler made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.ranks import Ranks
from labkit.lessons.cliff.exercises import audit, gate, loop
from labkit.lessons.break_it import exercises as break_it
from labkit.lessons.functional.exercises import broadcast, mean
from labkit.lessons.cold import exercises as cold
from labkit.lessons.compiled_streams import exercises as compiled_streams
from labkit.lessons.groups import exercises as groups
from labkit.lessons.guards import exercises as guards
from labkit.lessons.ledger import exercises as judge
from labkit.lessons.mesh import exercises as mesh
from labkit.lessons.reading.exercises import reading
from labkit.lessons.dtensor import exercises as routes
from labkit.lessons.scale import exercises as scale
from labkit.lessons.start import exercises as start
from labkit.lessons.streams import exercises as streams
from labkit.lessons.symmetry import exercises as symmetry
from labkit.lessons.ddp import exercises as training
from labkit.lessons.trap import exercises as trap
from labkit.study.exercises import Answer, Exercise

__all__ = ["EXERCISES", "Answer", "Exercise", "check"]

EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for exercise in (
        *(start.EXERCISE, groups.BARRIER, groups.AXIS),
        *(broadcast.EXERCISE, mean.EXERCISE),
        *(reading.FIND, reading.ONE, reading.COUNT),
        *(gate.EXERCISE, loop.EXERCISE, audit.EXERCISE),
        *(trap.BREAK, trap.GUARD),
        *(streams.ORDER, streams.HIDE, streams.WAIT),
        *(compiled_streams.BESIDE, compiled_streams.MUTATED, compiled_streams.CHOOSE),
        *(symmetry.PARITY, symmetry.PLAN, symmetry.REPAIR),
        *(guards.COUNTER, guards.BISECT),
        scale.BEST,
        mesh.MEAN,
        cold.WARMUP,
        *(routes.PLACEMENT, routes.REDUNDANT, routes.BYTES),
        *(training.GATHER, training.WEIGH),
        *(break_it.TRIPWIRE, break_it.LEAD),
        judge.EXERCISE,
    )
}


def check(exercise: str, attempt: Callable[..., Any], ranks: Ranks) -> Answer:
    """Run an attempt at an exercise on `ranks` and say whether it passes; a wrong one gets the hint for its mistake.

    Raises ValueError for an exercise that does not exist or an attempt that is not a function.

    >>> from labkit.lessons.shared import tensor_parallel
    >>> with Ranks(2, device="cpu", backend="shm", quiet=True) as ranks:
    ...     bool(check("cliff.gate", tensor_parallel.functional, ranks))
    False
    """
    if exercise not in EXERCISES:
        raise ValueError(f"unknown exercise {exercise!r}: there is {', '.join(EXERCISES)}")
    if not callable(attempt) or isinstance(attempt, type):
        raise ValueError(f"the attempt at {exercise!r} must be a function, got {_kind(attempt)}")
    return EXERCISES[exercise].check(attempt, ranks)


def _kind(attempt: Any) -> str:
    return f"the class {attempt.__name__}" if isinstance(attempt, type) else type(attempt).__name__
