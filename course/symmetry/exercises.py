"""Exercises of lesson 08: two hung runs read from their flight records, and two programs of one Dynamo graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from course.shared.jobs import listed
from labkit import files
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["JOB", "LAYERS", "compiled", "dumps", "line_of"]

LAYERS = files.ours("data/captured/symmetry/layers.log")
JOB = files.ours("data/captured/symmetry/train.py.txt")
ASKED = 'return {"a": {"rank": ..., "collective": ..., "line": ...}, "b": {...}}, whole numbers'
WHERE = {"a": (2, 27), "b": (1, 37)}  # the rank, and the first collective that it does not share
LED = {  # the lines that lead that rank away, and the hint where another is named
    "a": (("if loss.item() > 20 * best:", "continue"),
          "the dump tells where the rank stands; which line of the loop lets it go on alone?"),
    "b": (("loss = forward(loader.next()).square().mean()", "self.ready.acquire()"),
          "b/log.txt has the stacks of all ranks: where does the main thread of this one wait?"),
}  # fmt: skip


def line_of(words: str) -> int:
    """The number of the line of the job that consists of these words, from 1."""
    (found,) = [i for i, line in enumerate(JOB.read_text().splitlines(), 1) if line.strip() == words]
    return found


def judge_dumps(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """For each run the rank, the first collective that it does not share, and the line that led it away."""
    (found,) = on_ranks(ranks, attempt, only=0, hint=ASKED)
    if not isinstance(found, dict) or set(found) != set(WHERE):
        raise Mistake(f"it returns {str(found)[:80]}", ASKED)
    for run, (rank, collective) in WHERE.items():
        try:
            mine = {name: _whole(found[run][name]) for name in ("rank", "collective", "line")}
        except (TypeError, KeyError, IndexError, ValueError):
            raise Mistake(f"{run}: {str(found[run])[:80]}", ASKED) from None
        if mine["rank"] != rank:
            hint = "print name and sizes of the last entries of each rank: which one differs from the other three?"
            raise Mistake(f"{run}: rank {mine['rank']}", hint)
        if mine["collective"] != collective:
            hint = (
                "all ranks made that one: go on to the first number at which this rank has another call, or none"
                if mine["collective"] < collective
                else "there is an earlier number at which this rank has another call, or none"
            )
            raise Mistake(f"{run}: collective {mine['collective']}", hint)
        lines, hint = LED[run]
        if mine["line"] not in map(line_of, lines):
            raise Mistake(f"{run}: line {mine['line']}", hint)
        say(f"{run}: rank {rank} leaves the others at collective {collective}, by line {mine['line']}")


JOBS = {  # the number of the first call that differs, the node that it comes from on rank 0 and on rank 1, the cause
    "A": (1, ("tensor", "tensor_1"), "bucketing on one rank"),
    "B": (2, ("tensor_2", "tensor_1"), "gradients on one rank"),
    "C": None,  # the outputs differ in their waits: the calls are alike
}
CAUSES = ("a graph break", "another shape", "bucketing on one rank", "gradients on one rank")
FORM = 'it returns {"A": (number, "node on rank 0", "node on rank 1", "cause"), ...}, None where the calls are alike'
WHY = {
    "A": "one rank has a call that the other has not: what is its operation, and how long is its input?",
    "B": "compare the lines AOT ID: what was each rank's code compiled for, and what does section 3 say of that?",
}


def judge_compiled(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """For each job the first call at which two programs of one graph differ, the nodes it comes from, and the cause."""
    (found,) = on_ranks(ranks, attempt, only=0, hint=FORM)
    if not isinstance(found, dict) or set(found) != set(JOBS):
        raise Mistake(f"it returns {str(found)[:80]}", FORM)
    for job, right in JOBS.items():
        mine = None if found[job] is None else _call(job, found[job])
        if right is None or mine is None:
            if mine is not right:
                hint = "write down each rank's calls in order, without waits: are they the same?"
                raise Mistake(f"{job}: {mine}", hint)
            say(f"{job}: two programs, and the same calls in the same order: the forward ends")
            continue
        number, nodes, cause = mine
        if number != right[0]:
            raise Mistake(
                f"{job}: call {number}",
                "count the calls of each rank from 1: which pair is the first unlike one?",
            )
        if nodes != right[1]:
            swapped = nodes == right[1][::-1]
            hint = (
                "these are the right nodes: rank 0's stands first"
                if swapped
                else "the comment above a call has its node"
            )
            raise Mistake(f"{job}: {nodes[0]} on rank 0, {nodes[1]} on rank 1", hint)
        if cause != right[2]:
            raise Mistake(f"{job}: {cause}", WHY[job])
        say(f"{job}: call {number} is {nodes[0]} on rank 0 and {nodes[1]} on rank 1, by {cause}")


def _whole(given: Any) -> int:
    if isinstance(given, bool):
        raise TypeError("a bool is no number here")
    return operator.index(given)


def _call(job: str, given: Any) -> tuple[int, tuple[str, str], str]:
    """A number, two nodes and a cause, however they are written; a node may have a `%`, or the brackets of the log."""
    try:
        number, *nodes, cause = given
        number, words = _whole(number), [word.casefold().strip("[]% ") for word in nodes]
        first, second = words
    except (TypeError, ValueError, AttributeError):
        raise Mistake(f"{job}: {str(given)[:80]}", FORM) from None
    return number, (first, second), listed(job, cause, CAUSES)


dumps = Exercise(
    "symmetry.dumps",
    "which rank left, at which collective, by which line",
    "medium",
    15,
    (
        "for each run the rank",
        "the number of the first collective that it does not share",
        "the line that led it away",
    ),
    judge_dumps,
)
compiled = Exercise(
    "symmetry.compiled",
    "two programs of one graph",
    "medium",
    10,
    (
        "for each job the number of the first call at which the ranks differ",
        "the Dynamo node of that call on each rank",
        "the cause",
    ),
    judge_compiled,
)
