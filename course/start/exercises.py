"""Lesson 00, `start.largest`: the first collective of the reader's own."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from labkit.ranks import Ranks, here
from labkit.records import record
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["largest"]

MORE = 3  # with two ranks, sum and maximum of the ranks' numbers are the same
LATE_S = 0.1
ROOTED = ("reduce", "gather")  # gloo leaves partial results on the other ranks, which may be right by chance


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The largest rank's number on every rank, out of one collective, on two ranks and on three."""
    _judge_on(ranks, attempt, say)
    with Ranks(MORE, device="cpu", backend="gloo", quiet=True) as three:
        _judge_on(three, attempt, say)


def _judge_on(ranks: Ranks, attempt: Attempt, say: Callable[[str], None]) -> None:
    hint = "it is called as largest_rank(device) and returns a number"
    seen = on_ranks(ranks, _look, attempt, ranks.device, hint=hint, timeout=30)
    said, largest = [found["said"] for found in seen], len(ranks) - 1
    text = f"on {len(ranks)} ranks: they say {', '.join(map(str, said))}"
    strange = next((found["type"] for found in seen if found["value"] is None), "")
    if strange == "Tensor":
        raise Mistake(text, "it returns a tensor: .item() makes it a number")
    if strange:
        raise Mistake(text, "every rank has to return a number: say what you want back with return")
    calls = {found["collectives"] for found in seen}
    values = [found["value"] for found in seen]
    if calls == {0}:
        raise Mistake(
            f"{text}, and no collective ran",
            "a rank knows its own number only: let them tell each other, in a collective",
        )
    if calls != {1}:
        raise Mistake(
            f"{text}, with {max(calls)} collectives",
            "one is enough: all_reduce takes an op, and MAX is one of them",
        )
    if any(found["rooted"] for found in seen):
        raise Mistake(
            text,
            "this collective promises its result to one rank, and the others hold leftovers: take one whose name "
            "begins with all_",
        )
    if len(set(values)) > 1:
        raise Mistake(
            text,
            "the ranks hold different numbers: with async_op=True a collective is under way until wait() of the Work "
            "that it returns",
        )
    if values[0] == sum(range(len(ranks))) != largest:
        raise Mistake(
            text,
            "that is their sum, which is the largest of two ranks by chance: all_reduce adds up unless given an op",
        )
    if values[0] != largest:
        raise Mistake(text, f"the largest of 0 to {len(ranks) - 1} was asked for")
    say(f"{text}, after one collective")


def _look(attempt: Attempt, device: str) -> dict[str, Any]:
    """On a rank: what the attempt returned, and how many collectives it took.

    The last rank comes late, so that no other one has its number before the collective has ended.
    """
    dist.barrier()
    if here().rank == here().world_size - 1:
        time.sleep(LATE_S)
    with record() as rec:
        found = attempt(device)
    counts = rec.counts
    called = rec.events[rec.events["kind"] == "collective"]["name"].str.split(":").str[-1].str.strip("_")
    number = isinstance(found, numbers.Real) and not isinstance(found, bool)
    return {
        "said": f"{found!r:.40}",
        "type": type(found).__name__,
        "value": float(found) if number else None,  # type: ignore[arg-type]
        "collectives": int(counts.iloc[0]["collectives"]) if len(counts) else 0,
        "rooted": bool(called.isin(ROOTED).any()),
    }


largest = Exercise(
    "start.largest",
    "the largest rank",
    "easy",
    2,
    ("every rank returns the number of the largest", "one collective, however many ranks there are"),
    judge,
)
