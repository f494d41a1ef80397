"""Lesson 02, `semantics.jobs`: the logs of three jobs with wrong sums; which ranks, why, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["jobs"]

CAUSES = ("order", "wait", "schema", "shape")
FIXES = ("one order", "wait_tensor", "mutates_args", "barrier", "fullgraph", "timeout")
# by job: the ranks with a wrong number, the cause, the fix
RIGHT = {
    "A": ({0, 1}, "order", "one order"),
    "B": ({0}, "wait", "wait_tensor"),
    "C": ({0, 1}, "schema", "mutates_args"),
}
FORM = 'it returns a dict such as {"A": ([0, 1], "shape", "timeout"), ...}: ranks, cause and fix of each job'
RANKS = {
    "A": "work out both sums by hand from the x of both ranks: the first sum, and the second, which is 100 times it",
    "B": "work out what both ranks should print, from the x of both, and compare",
    "C": "work out what both ranks should print, from the x of both: is it a sum over ranks?",
}
LOOK = {
    "A": "what does the first all_reduce of rank 0 take, and what that of rank 1?",
    "B": "go back from `add` along its edge: what should be between, and is not?",
    "C": "the program calls an operator on line 23: where is it in the graph, and what does its schema let a pass do?",
}
FIX = {
    "barrier": "a barrier changes when ranks arrive, not what stands in a graph",
    "fullgraph": "each log has one graph already",
    "timeout": "no rank was killed for being late: the numbers are wrong",
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and fix."""
    answer = on_ranks(ranks, attempt, only=0, hint=FORM)[0]
    if not isinstance(answer, dict) or set(answer) != set(RIGHT):
        given = f"the jobs {sorted(map(str, answer))}" if isinstance(answer, dict) else type(answer).__name__
        raise Mistake(f"it returns {given}", FORM)
    for job, (ranks_right, cause_right, fix_right) in RIGHT.items():
        on, cause, fix = _parts(job, answer[job])
        if on != ranks_right:
            raise Mistake(f"job {job}: wrong numbers on {_named(on)}", RANKS[job])
        if cause != cause_right:
            raise Mistake(f"job {job}: the cause is {cause!r}", LOOK[job])
        if fix != fix_right:
            raise Mistake(
                f"job {job}: change it by {fix!r}", FIX.get(fix, "right cause, and the cure of another one")
            )
        say(f"job {job}: {_named(on)}, {cause}, {fix}")


def _parts(job: str, given: Any) -> tuple[set[int], str, str]:
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise Mistake(f"job {job}: {given!r}", FORM)
    on, cause, fix = given
    on = {on} if isinstance(on, int) else on
    if not isinstance(on, set | list | tuple | frozenset) or not set(on) <= {0, 1}:
        raise Mistake(f"job {job}: the ranks are {given[0]!r}", "ranks are a list of 0 and 1")
    for word, words in ((cause, CAUSES), (fix, FIXES)):
        if word not in words:
            raise Mistake(f"job {job}: {word!r} is not a word of the list", f"one of {', '.join(words)}")
    return set(on), cause, fix


def _named(on: set[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in sorted(on)) or "no rank"


jobs = Exercise(
    "semantics.jobs",
    "three logs with wrong sums",
    "medium",
    15,
    ("for each job the ranks that print a wrong number, the cause, and what to change",),
    judge,
)
