"""Exercise: the logs of three sharded jobs; which ranks, why, and what to change."""

from __future__ import annotations

from collections.abc import Callable

from course.shared.jobs import judge_jobs
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise

__all__ = ["jobs"]

CAUSES = ("no units", "microbatches", "divided", "not divided", "no prefetch")
CHANGES = (
    "block.compile()",
    "equal microbatches",
    "set_gradient_divide_factor(1.0)",
    "set_modules_to_forward_prefetch",
    "timeout",
)
RIGHT = {
    "A": ({0, 1}, "no units", "block.compile()"),
    "B": ({1}, "microbatches", "equal microbatches"),
    "C": ({0, 1}, "divided", "set_gradient_divide_factor(1.0)"),
}
FORM = 'it returns a dict such as {"A": ([0, 1], "no prefetch", "timeout"), ...}: ranks, cause and change of each job'
RANKS = {
    "A": "both logs are the same, so what is wrong is wrong on both",
    "B": "count the gathers of the root on each rank: which one does something that the other does not?",
    "C": "a norm over all pieces is the same number on both ranks: is one of them right?",
}
LOOK = {
    "A": "two blocks were to be units: which of them are gathered?",
    "B": "each root gather begins a microbatch: how many are there on each rank?",
    "C": "half of the right gradient: did somebody divide who should not have?",
}
CHANGE = {
    "timeout": "nobody is late: with more time the job waits longer, or is as wrong as before",
    "set_modules_to_forward_prefetch": "it moves gathers, and changes neither which units there are nor numbers",
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change; what is wrong in any job is said at once."""
    judge_jobs(attempt, ranks, say, _hint, RIGHT, CAUSES, CHANGES, FORM)


def _hint(job: str, on: set[int], cause: str, change: str) -> str:
    ranks, cause_right, change_right = RIGHT[job]
    if on != ranks:
        return RANKS[job]
    if cause != cause_right:
        return LOOK[job]
    return "" if change == change_right else CHANGE.get(change, "right cause, and the cure of another one")


jobs = Exercise(
    "fsdp.jobs",
    "three logs of sharded jobs",
    "easy",
    5,
    ("each job's ranks that differ from what was meant, the cause, and the change",),
    judge,
)
