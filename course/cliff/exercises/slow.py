"""Lesson 04, `cliff.slow`: from log and profile of four ranks to the rank, its regions, the line and the fix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from oddrank.record import record

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
    if not all(_whole(found[key]) for key in ("rank", "line", "regions")):
        raise Mistake(", ".join(f"{key} {found[key]!r:.20}" for key in ("rank", "line", "regions")), ASKED)
    if found["rank"] != RANK:
        raise Mistake(f"rank {found['rank']}", "add up `# of Calls` for each rank")
    if found["line"] in PRINTS:
        raise Mistake(
            f"line {found['line']}",
            "the profile has no more calls for a print than forwards: what runs 60 times?",
        )
    if found["line"] != LINE:
        raise Mistake(f"line {found['line']}", "the number that follows `in user code at serve.py:`")
    if found["regions"] != REGIONS:
        hints = {
            REGIONS * FORWARDS: f"the profile covers {FORWARDS} forwards: ask for one",
            8: "those are the names: a region of one name runs many times",
        }
        hint = hints.get(
            found["regions"], "all rows of this rank together, divided by the forwards of the profile"
        )
        raise Mistake(f"{found['regions']} regions a forward", hint)
    say(f"rank {RANK} enters {REGIONS} regions a forward; line {LINE} is what the other ranks do not run")
    seen = on_ranks(
        ranks, _look, str(found["fix"]), hint="the fix is Python that takes the place of the line"
    )
    if any(not one["same"] for one in seen):
        raise Mistake(
            "the outputs are not those of the job", "line 22 only keeps a number: leave x and top alone"
        )
    if any(not one["peak"] for one in seen):
        raise Mistake(
            f"self.peak is {seen[-1]['is']}, and the largest value was {seen[-1]['largest']:.4g}",
            "the job still wants the largest value of all its forwards in self.peak; a tensor will do",
        )
    if any(one["late"] for one in seen):
        raise Mistake(
            f"Dynamo compiles again in the forwards {', '.join(map(str, seen[-1]['late']))}",
            "what the line keeps must not grow from call to call: one value is enough",
        )
    regions = [one["regions"] for one in seen]
    if set(regions) != {1}:
        raise Mistake(
            f"without the prints, regions a forward by rank, the last with --watch: {regions}",
            "Python still asks a tensor for its value, once a layer: keep the peak as a tensor",
        )
    say("without the prints, every rank runs one region a forward, also the one with --watch")


def _look(fix: str) -> dict[str, Any]:
    """On a rank: the job's stack with another line in it, on the last rank with --watch."""
    me = here()
    watch = me.rank == me.world_size - 1
    right, mine = (_stack(line, watch).to(me.device) for line in ("", fix))
    late: list[int] = []
    forward = 0

    def backend(graph: Any, inputs: Any) -> Any:
        if forward >= len(SIZES):  # by then every kind of value that the line keeps was seen
            late.append(forward)
        return graph.forward

    compiled = torch.compile(mine, backend=backend)
    same = True
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
        (layer.scale.peak, other.scale.peak) for layer, other in zip(mine.layers, right.layers, strict=True)
    ]
    close = all(_number(one) is not None and abs(_number(one) - float(other)) < 1e-4 for one, other in peaks)
    return {
        "same": same,
        "peak": close or not watch,
        "is": f"{_number(peaks[0][0])}",
        "largest": float(peaks[0][1]),
        "late": sorted(set(late)),
        "regions": rec.counts[0].regions,
    }


def _whole(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _stack(fix: str, watch: bool) -> Any:
    """The job's model, with `fix` for the line that only one rank runs; as it is for an empty one."""
    names = job_with(JOB, LINE, fix)
    torch.manual_seed(0)
    return names["Stack"](watch)


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
