"""Lesson 04, `cliff.slow`: from log and profile of four ranks to the rank, its regions, the line and the fix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from oddrank.record import record

from course.cliff.exercises.table import judge_by, seen
from course.shared.jobs import job_with
from labkit import files
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["JOB", "LOG", "slow"]

LOG = files.ours("data/captured/serve.log")
JOB = files.ours("data/captured/serve.py.txt")
RANK, LINE, REGIONS, FORWARDS = 2, 22, 41, 5
SIZES = (1.0, 3.0, 0.5, 0.25)  # of inputs: the largest value is not the last
PRINTS = (46, 48, 50)  # lines that break on every rank
ASKED = (
    'return {"rank": 0, "line": 1, "regions": 1, "fix": "..."}: three whole numbers, and Python for the line'
)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The rank, the line and the regions that log and profile show, and a line that leaves this rank one region."""
    (found,) = on_ranks(ranks, attempt, only=0, hint=ASKED)
    if not isinstance(found, dict) or set(found) != {"rank", "line", "regions", "fix"}:
        raise Mistake(f"it returns {str(found)[:80]}", ASKED)
    rank, line, regions = numbers = [found[name] for name in ("rank", "line", "regions")]
    mistakes = {
        ASKED: not all(map(_whole, numbers)),
        "add up `# of Calls` for each rank": rank != RANK,
        "the profile has no more calls for a print than forwards: what runs 60 times?": line in PRINTS,
        "the number that follows `in user code at serve.py:`": line != LINE,
        f"the profile covers {FORWARDS} forwards: ask for one": regions == REGIONS * FORWARDS,
        "those are the names: a region of one name runs many times": regions == 8,
        "all rows of this rank together, divided by the forwards of the profile": regions != REGIONS,
    }
    judge_by([seen(f"it says rank {rank}, line {line}, {regions} regions a forward", mistakes)], say)
    hint = "the fix is Python that takes the place of the line"
    seen_by = on_ranks(ranks, _look, str(found["fix"]), hint=hint)
    judge_by(seen_by, lambda _: say(seen_by[-1][0]))  # the last one watches


def _look(fix: str) -> Any:
    """On a rank: the job's stack with another line in it beside the job's own; --watch is on the last rank."""
    me = here()
    watch = me.rank == me.world_size - 1
    right, mine = (_stack(line, watch).to(me.device) for line in ("", fix))
    late: list[int] = []
    forward = 0

    def backend(graph: Any, inputs: Any) -> Any:
        if forward >= len(SIZES):  # by then every kind of value that the line keeps was seen
            late.append(forward)
        return graph.forward

    compiled, same = torch.compile(mine, backend=backend), True
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for forward in range(3 * len(SIZES)):  # noqa: B007, the backend reads it
            size = SIZES[forward % len(SIZES)] * (
                me.world_size - me.rank
            )  # the last rank's numbers are small
            x = size * torch.ones(4, 16, device=me.device)
            same = bool(same and torch.allclose(compiled(x.clone()), right(x.clone()), atol=1e-5))
        with record() as rec, rec.forward():
            compiled(x.clone())
    peaks = [
        (_number(a.scale.peak), float(b.scale.peak)) for a, b in zip(mine.layers, right.layers, strict=True)
    ]
    regions = rec.counts.dicts()[0]["regions"]
    mistakes = {
        "the outputs are not those of the job: line 22 only keeps a number, so leave x and top alone": not same,
        "the job still wants the largest value of all its forwards in self.peak; a tensor will do": (
            watch and any(a is None or abs(a - b) > 1e-4 for a, b in peaks)
        ),
        "what the line keeps must not grow from call to call: one value is enough": late,
        "Python still asks a tensor for its value, and a comparison asks, too: let tensors stay tensors": (
            regions != 1
        ),
    }
    who = "the rank that watches" if watch else "a rank that does not watch"
    many = f"{regions} region{'s' * (regions != 1)}"
    said = f"{who}, without the prints: {many} a forward; self.peak is {peaks[0][0]}, the largest {peaks[0][1]:.4g}"
    return seen(f"{said}; compiled again in the forwards {sorted(set(late))}" if late else said, mistakes)


def _whole(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _stack(fix: str, watch: bool) -> Any:
    """The job's model, with `fix` for the line that only one rank runs; as it is for an empty one."""
    torch.manual_seed(0)
    return job_with(JOB, LINE, fix)["Stack"](watch)


slow = Exercise(
    "cliff.slow",
    "the slow rank of four, from its log and its profile",
    "medium",
    10,
    (
        "the rank that runs most regions, and how many a forward",
        "the line that makes them",
        "a replacement line with which this rank runs no more regions than the others",
    ),
    judge,
)
