"""Lesson 05, `trap.reports`: what three jobs wrote; which ranks, why, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["reports"]

CAUSES = ("type", "form", "gradient", "late rank")
CHANGES = ("wait before the call", "in place", "functional", "gate", "g", "dynamic=True", "longer timeout")
RIGHT = {
    "A": ({1}, "type", "wait before the call"),
    "B": ({0}, "form", "in place"),
    "C": ({0, 1}, "gradient", "g"),
}
FORM = 'it returns a dict such as {"A": ([0], "late rank", "gate"), ...}: ranks, cause and change of each job'
RANKS = {
    "A": "each line begins with the rank that wrote it: which of them compiles twice?",
    "B": "compare the operators of the two tables: the extra ones are on one rank only",
    "C": "compare each rank's compiled line with its one process",
}
LOOK = {
    "A": "read the guard that failed: which property of h does it check, and what is h on line 19 of the program?",
    "B": "with the fake group no rank waits for another; what does one of them call that the other does not?",
    "C": "the losses agree on all lines, and the gradients do not: what has a derivative in one of the two modes only?",
}
CHANGE = {
    "A": {
        "dynamic=True": "dynamic=True is about sizes, and this guard is about a type",
        "in place": "one type for line 21, and the collective no longer runs beside line 20: what keeps both?",
    },
    "B": {
        "gate": "nothing is compiled here, so a gate only adds an `if` around the call that you want",
        "wait before the call": "that saves the first use, and not the operators around it",
    },
    "C": {
        "functional": "its backward adds up over the ranks: with one replicated loss, twice as much, in both modes",
        "gate": "a gate is what makes the two modes differ",
        "in place": "it is in place: that is the eager line, and compiled Dynamo replaces it by the functional form",
    },
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change; what is wrong in any job is said at once."""
    answer = on_ranks(ranks, attempt, only=0, hint=FORM)[0]
    if not isinstance(answer, dict) or set(answer) != set(RIGHT):
        given = f"the jobs {sorted(map(str, answer))}" if isinstance(answer, dict) else type(answer).__name__
        raise Mistake(f"it returns {given}", FORM)
    parts = {job: _parts(job, answer[job]) for job in RIGHT}
    wrong = {job: hint for job, part in parts.items() if (hint := _hint(job, *part))}
    if wrong:
        hints = "; ".join(f"job {job}: {hint}" for job, hint in wrong.items())
        raise Mistake(f"not right yet: {', '.join(f'job {job}' for job in wrong)}", hints)
    for job, (on, cause, change) in parts.items():
        say(f"job {job}: {' and '.join(f'rank {rank}' for rank in sorted(on))}, {cause}, {change}")


def _hint(job: str, on: set[int], cause: str, change: str) -> str:
    ranks, cause_right, change_right = RIGHT[job]
    if on != ranks:
        return RANKS[job]
    if cause != cause_right:
        return LOOK[job]
    return (
        ""
        if change == change_right
        else CHANGE[job].get(change, "right cause, and the remedy of another one")
    )


def _parts(job: str, given: Any) -> tuple[set[int], str, str]:
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise Mistake(f"job {job}: {given!r}", FORM)
    on, cause, change = given
    on = {on} if isinstance(on, int) else on
    if not isinstance(on, set | list | tuple | frozenset) or not set(on) <= {0, 1}:
        raise Mistake(f"job {job}: the ranks are {given[0]!r}", "ranks are a list of 0 and 1")
    for word, words in ((cause, CAUSES), (change, CHANGES)):
        if word not in words:
            raise Mistake(f"job {job}: {word!r} is not a word of the list", f"one of {', '.join(words)}")
    return set(on), cause, change


reports = Exercise(
    "trap.reports",
    "what three jobs wrote",
    "medium",
    10,
    ("for each job the ranks that show the fault, the cause, and what to change",),
    judge,
)
