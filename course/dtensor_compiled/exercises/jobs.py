"""Lesson 10b, `dtensor_compiled.jobs`: what three jobs wrote; which ranks, why, and what to change."""

from __future__ import annotations

from collections.abc import Callable

from course.shared.jobs import hint_in_order, judge_jobs
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise

__all__ = ["jobs"]

CAUSES = ("no f", "no g", "open Partial", "uneven shards", "type")
F_BACKWARD, WEIGHTS, G_FORWARD, SETTLE = (
    "all-reduce in the backward before up",
    "all-reduce the weights' gradients",
    "all-reduce after down",
    "Replicate() after down",
)
CHANGES = (
    *(F_BACKWARD, WEIGHTS, G_FORWARD, SETTLE),
    *("pad the rows", "dynamic=False", "wait before the call", "recompile_limit"),
)
RIGHT = {
    "A": ({0, 1}, "no f", F_BACKWARD),
    "B": ({1}, "uneven shards", "pad the rows"),
    "C": ({0, 1}, "open Partial", SETTLE),
}
FORM = (
    'it returns a dict such as {"A": ([0], "type", "pad the rows"), ...}: ranks, cause and change of each job'
)
RANKS = {
    "A": "compare the four gradients with one process's on each rank",
    "B": "at 5 rows one rank compiles a graph that pads; which one calls an old graph, and what was it made for?",
    "C": "each line begins with the rank that wrote it: who compiles at 640 tokens?",
}
LOOK = {
    "A": "the losses agree, so the forward is right; follow the gradient from mm_7, which leaves layer 1, to mm_8 and "
    "mm_9: what is it on one rank, and what should it be?",
    "B": "what does a rank's part look like at 4, 6 and 5 rows, and what does the guard of the first graph compare?",
    "C": "the guard that failed is a comparison of two costs: 19.294 and 34.6 stand in section 2's table for 256 "
    "features; for which two collectives, and which placement makes DTensor compare them?",
}
CHANGE = {
    "A": {
        G_FORWARD: "the sum after down is there, or the losses would differ from one process's",
        WEIGHTS: "each rank holds other rows of up and other columns of down: a sum would add gradients of different "
        "weights",
        SETTLE: "this job has no DTensor and no placement: it has to call the collective itself",
    },
    "B": {
        "dynamic=False": "with static sizes neither rank compiles at 5 rows: rank 0's part is that of 6 rows, "
        "rank 1's that of 4",
        "recompile_limit": "nobody has reached a limit, and rank 1 does not try to compile",
    },
    "C": {
        "dynamic=False": "then every new number of tokens compiles, and a long batch still gathers the weight",
        "recompile_limit": "that allows more compiles, and a long batch still gathers the weight",
        "wait before the call": "that is for an input of two types, and this guard is about a size",
        G_FORWARD: "the layers are DTensors: say the placement, and DTensor calls the all-reduce",
    },
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change; what is wrong in any job is said at once."""
    hint = hint_in_order(RIGHT, RANKS, LOOK, CHANGE)
    judge_jobs(attempt, ranks, say, hint, RIGHT, CAUSES, CHANGES, FORM)


jobs = Exercise(
    "dtensor_compiled.jobs",
    "three jobs' logs",
    "medium",
    5,
    ("for each job the ranks, the cause, and what to change",),
    judge,
)
