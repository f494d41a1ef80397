"""Lesson 05, `trap.reports`: what three jobs wrote; which ranks, why, and what to change."""

from __future__ import annotations

from collections.abc import Callable

from course.shared.jobs import hint_in_order, judge_jobs
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise

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
    hint = hint_in_order(RIGHT, RANKS, LOOK, CHANGE)
    judge_jobs(attempt, ranks, say, hint, RIGHT, CAUSES, CHANGES, FORM)


reports = Exercise(
    "trap.reports",
    "what three jobs wrote",
    "medium",
    10,
    ("for each job the ranks that show the fault, the cause, and what to change",),
    judge,
)
