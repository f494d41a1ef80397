"""Lesson 04, `cliff.audit`: the invariant that a project holds in CI, as a function of a merged record."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labkit import lessons
from labkit.graphs import Record, merge
from labkit.lessons.shared.variants import own
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["CASES", "EXERCISE", "Case", "records"]

cliff = lessons.program("cliff")


@dataclass(frozen=True)
class Case:
    """A record that the gate is asked about: how it was made, whether it is fit, and the hint for the wrong answer."""

    said: str
    fit: bool
    hint: str
    ways: tuple[str, str]  # what rank 0 runs, what rank 1 runs


CASES = (
    Case(
        "C's way, one region with every collective in it",
        True,
        "nothing is wrong with this one: the gate is too strict, or says False where it means True",
        ("whole", "whole"),
    ),
    Case(
        "B's way, a break at every collective",
        False,
        "these breaks stand at the collectives: record.counts() has a column for them",
        ("broken", "broken"),
    ),
    Case(
        "a break at an `if`, none at a collective",
        True,
        "no break is not the goal, no break from a collective is: `breaks` and `static_breaks` count all of them",
        ("elsewhere", "elsewhere"),
    ),
    Case(
        "rank 1 breaks at its collectives, rank 0 does not",
        False,
        "rank 0 looks fine here, and the other one falls to pieces: ask every row of record.counts()",
        ("whole", "broken"),
    ),
    Case(
        "rank 0 breaks at its collectives, rank 1 does not",
        False,
        "the last rank looks fine here, and rank 0 falls to pieces: ask every row of record.counts()",
        ("broken", "whole"),
    ),
    Case(
        "the frame was given up, so no break ran, and nothing was compiled",
        False,
        "few breaks, and nothing compiled: a frame that Dynamo gives up enters no region, so ask for one",
        ("given_up", "given_up"),
    ),
)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Ask the gate about every record; the first wrong answer decides the hint."""
    hint = "it is called as fit_for_ci(record) with a merged record, and returns True or False"
    answers = on_ranks(ranks, _ask, attempt, records(), only=0, hint=hint, timeout=30)[0]
    for case, answer in zip(CASES, answers, strict=True):
        if not isinstance(answer, bool):
            raise Mistake(f"{case.said}: it says {answer}", "return True or False, one answer for all ranks")
    if len(set(answers)) == 1:
        raise Mistake(
            f"it says {answers[0]} to every record", "a gate tells records apart: begin with record.counts()"
        )
    for case, answer in zip(CASES, answers, strict=True):
        if answer != case.fit:
            raise Mistake(f"{case.said}: it says {answer}", case.hint)
        say(f"{case.said}: {answer}")


def _ask(attempt: Attempt, asked: list[Record]) -> list[Any]:
    """On a rank: the answers, as bool where they are one, as text where they are not."""
    given = [attempt(record) for record in asked]
    return [bool(a) if isinstance(a, (bool, np.bool_)) else f"{a!r:.60} ({type(a).__name__})" for a in given]


@functools.cache
def records() -> list[Record]:
    """One merged record of two ranks for each case, made on ranks of their own, where nothing was compiled before."""
    with Ranks(2, device="cpu", backend="shm", quiet=True) as two:
        return [merge(two.run(_make, case.ways)) for case in CASES]


def _make(ways: tuple[str, str]) -> Record:
    """On a rank: compile what its way says, and record one steady forward."""
    from labkit.graphs import record

    def broken(x: Any) -> Any:
        return cliff.disabled(cliff.disabled(x * 0.5) + 1) * 2

    def whole(x: Any) -> Any:
        return cliff.functional(cliff.functional(x * 0.5) + 1) * 2

    def elsewhere(x: Any) -> Any:
        x = cliff.functional(cliff.functional(x * 0.5) + 1)
        if x.sum() > 1e6:
            x = x - 1
        return x * 2

    def given_up(x: Any) -> Any:
        for _ in range(2):
            x = cliff.disabled(x * 0.5) + 1
        return x * 2

    x = torch.ones(4)
    run = own({f.__name__: f for f in (broken, whole, elsewhere, given_up)}[ways[here().rank]])
    # regions and breaks are Dynamo's, and without Inductor they take no C++ compiler
    compiled = torch.compile(run, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            compiled(x.clone())
        with record() as rec, rec.forward():
            compiled(x.clone())
    return rec


EXERCISE = Exercise(
    "cliff.audit",
    "a gate for CI",
    "hard",
    10,
    (
        "True for a record with no break at a collective on any rank, whatever else breaks",
        "False where one rank alone breaks at a collective",
        "False where a rank compiled nothing at all",
    ),
    judge,
)
