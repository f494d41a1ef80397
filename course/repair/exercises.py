"""Lesson 18: profiles of both ranks of three training jobs, and what each says of rank, cause and change."""

from __future__ import annotations

from collections.abc import Callable

from course.shared.jobs import hint_in_order, judge_jobs
from labkit import files
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise

__all__ = ["PROFILES", "profiles"]

PROFILES = files.ours("data/captured/repair_jobs.log")
SELDOM, BEFORE, FASTER = "do it seldom, or on no rank", "prepare batches before the step", "use a faster link"
CAUSES = ("work on one rank", "work on both ranks", "Python on one rank", "slow link")
CHANGES = (SELDOM, BEFORE, FASTER, "compile the layers", "bucket the all-reduces")
RIGHT = {
    "A": ({1}, "work on one rank", SELDOM),
    "B": ({0}, "Python on one rank", BEFORE),
    "C": (set(), "slow link", FASTER),
}
FORM = (
    'it returns a dict such as {"A": ([0], "slow link", "compile the layers"), ...}: ranks, cause and change'
)
_BUCKETS = "the waiting is for a late rank, not for bytes"
_hint = hint_in_order(
    RIGHT,
    {
        "A": "the rank that waits has no fault: which rank has much more CPU time?",
        "B": "which rank has the CPU time, outside of all operators?",
        "C": "do the ranks differ in CPU time? where none has the work, the list is empty",
    },
    {
        "A": "which operator has the one rank that the other has not?",
        "B": "most of its step is in no operator, and it has the CPU time: which function in Python has it?",
        "C": "neither rank has CPU time for its step: what does an all-reduce take where no rank is late?",
    },
    {
        "A": {"bucket the all-reduces": _BUCKETS},
        "B": {
            "bucket the all-reduces": _BUCKETS,
            "compile the layers": "the time is in no operator of a layer",
        },
        "C": {
            "bucket the all-reduces": "each layer needs the sum of the one before, and the bytes stay",
            "compile the layers": "the ranks wait, they do not compute",
        },
    },
)


def judge_profiles(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change; both ranks wait for a slow link, and naming both is as right as none."""

    def hint(job: str, on: set[int], cause: str, change: str) -> str:
        return _hint(job, set() if job == "C" and on == {0, 1} else on, cause, change)

    judge_jobs(attempt, ranks, say, hint, RIGHT, CAUSES, CHANGES, FORM)


profiles = Exercise(
    "repair.profiles",
    "three jobs and their profiles",
    "medium",
    6,
    ("for each job the ranks with the work, the cause, and the change",),
    judge_profiles,
)
