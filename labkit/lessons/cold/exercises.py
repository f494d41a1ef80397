"""Lesson 12: a warmup that leaves nothing to compile for the requests that come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["WARMUP"]

# what a service has seen: rows of the batch, and whether the rows are to be centred
ROWS = (4, 4, 8, 4, 4, 1, 8, 8, 4)
SEEN = tuple((rows, i in (3, 6)) for i, rows in enumerate(ROWS))
KINDS = tuple(dict.fromkeys(SEEN))


def judge_warmup(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The calls that the attempt makes on each rank, and what is left to compile when the requests come afterwards."""
    hint = "it is called as my_warmup(call, seen), and answers the requests that it chooses by call(request)"
    found = list(on_ranks(ranks, _warm, attempt, hint=hint))
    mine = found[0]
    for rank, other in enumerate(found):
        if other["strange"]:
            raise Mistake(
                f"rank {rank} calls {other['strange']}",
                f"a request is what stands in seen, a pair of rows and a flag such as {SEEN[0]}",
            )
        if other["calls"] != mine["calls"]:
            pairs = enumerate(zip(mine["calls"], other["calls"], strict=False))
            at = next((i for i, (one, another) in pairs if one != another), 0)
            raise Mistake(
                f"call {at + 1} of the warmup is another one on rank {rank} than on rank 0",
                "all ranks warm up with the same requests in the same order: in a real program each has collectives",
            )
    calls = len(mine["calls"])
    finding = f"calls: {calls}, graphs: {mine['before']}, compiled while serving: {mine['after']}"
    if not calls:
        raise Mistake(finding, "nothing is warm yet: answer requests by call(request)")
    if mine["after"]:
        missing = [kind for kind in KINDS if list(kind) not in mine["calls"]]
        sizes = {rows for rows, _ in missing} - {rows for rows, _ in mine["calls"]}
        raise Mistake(
            finding,
            f"rows {min(sizes)} come in production and not in the warmup: the largest does not stand for the others"
            if sizes
            else "a flag that changes the code is a version of its own: what is served is pairs of rows and flag",
        )
    if calls > len(KINDS):
        raise Mistake(
            finding, "time is what a warmup costs: a request of each kind once is enough, not all traffic"
        )
    say(f"{finding}, the same on {len(found)} ranks")


def _warm(attempt: Attempt) -> dict[str, Any]:
    torch_compat.dynamo_reset()
    made: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    def program(x: Any, centre: bool) -> Any:
        return (x - x.mean(-1, keepdim=True) if centre else x) * 2

    run = torch.compile(program, backend=keep, dynamic=False)
    calls: list[Any] = []
    strange: list[str] = []

    def call(request: Any) -> Any:
        if request not in KINDS:
            strange.append(repr(request)[:60])
            raise ValueError(f"no such request: {request!r}")
        calls.append(list(request))
        return run(torch.ones(request[0], 3), request[1])

    try:
        with torch.no_grad():
            try:
                attempt(call, list(SEEN))
            except ValueError:
                if not strange:
                    raise
            before = len(made)
            if not strange:
                for request in SEEN:
                    run(torch.ones(request[0], 3), request[1])
    finally:
        torch_compat.dynamo_reset()
    return {"calls": calls, "before": before, "after": len(made) - before, "strange": "; ".join(strange[:1])}


WARMUP = Exercise(
    "cold.warmup",
    "a warmup for what is served",
    "easy",
    5,
    (
        "the requests that come afterwards compile nothing",
        "as few calls as will do",
        "the same calls on all ranks, in the same order",
    ),
    judge_warmup,
)
