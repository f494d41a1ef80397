"""Lesson 02, `semantics.jobs`: the logs of two jobs with wrong sums; which ranks, why, and what to change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np

from course.functional.logs import LOGS
from course.shared.jobs import judge_jobs
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise

__all__ = ["jobs", "wrong_ranks"]

CAUSES = ("order", "wait", "schema", "shape")
FIXES = ("one order", "wait_tensor", "mutates_args", "barrier", "fullgraph", "timeout")
# by job: the cause, the change; the ranks with a wrong number are read from the logs
RIGHT = {"A": ("wait", "wait_tensor"), "B": ("schema", "mutates_args")}
FORM = (
    'it returns a dict such as {"A": ([0, 1], "shape", "timeout"), ...}: ranks, cause and change of each job'
)
RANKS = {
    "A": "work out what both ranks should print, from the x of both, and compare it with each log",
    "B": "work out what both ranks should print, from the x of both: is it a sum over ranks?",
}
LOOK = {
    "A": "go back from `add` along its edge, on rank 0 and on rank 1: what is between on one of them only?",
    "B": "which lines of the source are in the graph, and what does the schema of the one that is not let a pass do?",
}
FIX = {
    "barrier": "a barrier changes when ranks arrive, not what stands in a graph",
    "fullgraph": "each log has one graph already",
    "timeout": "no rank was killed for being late: the numbers are wrong",
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change; what is wrong in any job is said at once."""
    judge_jobs(attempt, ranks, say, _hint, RIGHT, CAUSES, FIXES, FORM)


def wrong_ranks(job: str) -> set[int]:
    """The ranks whose log prints another result than the one that the job should print."""
    xs, results = {}, {}
    for rank, log in LOGS[job].items():
        found = re.search(rf"rank {rank} x=(\[.*\]) result=(\[.*\])", log)
        assert found, f"job {job}, rank {rank}: no result in the log"
        xs[rank], results[rank] = np.array(json.loads(found[1])), json.loads(found[2])
    right = (2 * np.sum(list(xs.values()), axis=0) + 1).tolist()  # what both jobs should print
    return {rank for rank, result in results.items() if result != right}


def _hint(job: str, on: set[int], cause: str, fix: str) -> str:
    cause_right, fix_right = RIGHT[job]
    if on != wrong_ranks(job):
        return RANKS[job]
    if cause != cause_right:
        return LOOK[job]
    return "" if fix == fix_right else FIX.get(fix, "right cause, and the cure of another one")


jobs = Exercise(
    "semantics.jobs",
    "two logs with wrong sums",
    "medium",
    10,
    ("for each job the ranks that print a wrong number, the cause, and what to change",),
    judge,
)
