"""Lesson 03, `reading.culprit`: from a raw log of four ranks to the rank, the line and what takes its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from oddrank.stages import inspect

from course.shared.jobs import job_with
from labkit import files
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["LOG", "culprit"]

LOG = files.ours("data/captured/decoder_breaks.log")
JOB = files.ours("data/captured/decoder.py.txt")
RANK, LINE, ALIKE = 2, 23, 20  # the answer, and the line at which all four ranks break
ASKED = 'return {"rank": 0, "line": 1, "fix": "..."}: two whole numbers, and Python for that line\'s place'


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The rank and the line that the log names, and a line after which the ranks compile the same number of graphs."""
    (found,) = on_ranks(ranks, attempt, only=0, hint=ASKED)
    if not isinstance(found, dict) or set(found) != {"rank", "line", "fix"}:
        raise Mistake(f"it returns {str(found)[:80]}", ASKED)
    if found["line"] == ALIKE:
        raise Mistake(
            f"line {ALIKE}",
            "all four ranks break there: slow, and the same on each. What has one rank alone?",
        )
    if not isinstance(found["rank"], int) or not isinstance(found["line"], int):
        raise Mistake(f"rank {found['rank']!r}, line {found['line']!r}", ASKED)
    if found["rank"] != RANK:
        hint = "collect the breaks by rank: the head of each line begins with [rankN]"
        raise Mistake(f"rank {found['rank']}", hint)
    if found["line"] != LINE:
        raise Mistake(f"line {found['line']}", "the number stands after `in user code at decoder.py:`")
    say(f"rank {RANK} alone breaks at line {LINE}")
    seen = on_ranks(
        ranks, _look, str(found["fix"]), hint="the fix is Python that takes the place of the line"
    )
    if any(not one["same"] for one in seen):
        hint = "with --watch, partial sums above 50 are cut to 50 before they are added up: keep that"
        raise Mistake("the numbers are not those of the job", hint)
    graphs = [one["graphs"] for one in seen]
    if len(set(graphs)) > 1:
        hint = "Python still asks a tensor for a value: clamp changes nothing where no value is above 50"
        raise Mistake(f"graphs by rank, the last with --watch: {graphs}", hint)
    say(f"the same numbers; without the print, graphs by rank, the last with --watch: {graphs}")


def _look(fix: str) -> dict[str, Any]:
    """On a rank: the job's layer with another line in it, on the last rank with --watch."""
    me = here()
    watch = me.rank == me.world_size - 1
    right, mine = (layer(me.rank, me.world_size, watch).to(me.device) for layer in (_layer(""), _layer(fix)))
    same, small = True, torch.ones(4, 16, device=me.device)
    with torch.no_grad():
        for x in (small, 20 * small):
            same = same and torch.allclose(mine(x.clone()), right(x.clone()))
        frames = inspect(torch.compile(mine, backend="eager"), small, fresh=True)
    return {"same": same, "graphs": len(frames.graphs)}


def _layer(fix: str) -> Any:
    """The class of the job, with `fix` for the line that only one rank runs; as it is for an empty one."""
    return job_with(JOB, LINE, fix)["Layer"]


culprit = Exercise(
    "reading.culprit",
    "the rank, the line and the fix from a raw log",
    "medium",
    10,
    (
        "the rank and the line of the break that the other ranks do not have",
        "a replacement line that keeps the job's numbers and gives every rank the same number of graphs",
    ),
    judge,
)
