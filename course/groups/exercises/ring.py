"""Lesson 01, `groups.ring`: an all-reduce out of sends and receives, in which no rank sends more than another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit import torch_compat
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["ring"]

WORLD, ELEMENTS = 4, 64
UNEVEN = (66, 5)  # elements: no equal parts for four ranks, and torch.chunk makes three parts of five
OTHER_SIZES = (
    f"{WORLD} does not divide every number of elements: the parts differ in size, and what arrives needs a tensor of "
    "its part's size; torch.tensor_split always makes as many parts as you ask for"
)

WAITING = "the ranks wait for each other"
STALLED = (
    f"{WAITING}: where all ranks send first, each may wait until its neighbour receives. Start the send, receive, then "
    "wait for the send, as swap does"
)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The sum on each of four ranks, and 2(n - 1)/n of the tensor's bytes sent by each, in 2(n - 1) messages.

    The bytes are counted where the parts are equal; the sum has to be right for other sizes as well.
    """
    hint = "it is called as my_ring(x) on every rank, and returns the sum over the ranks"
    with Ranks(WORLD, device="cpu", backend="gloo", quiet=True) as four:
        _judge_equal(_looks(four, attempt, ELEMENTS, hint), say)
        for elements in UNEVEN:
            seen = _looks(four, attempt, elements, OTHER_SIZES)
            if any(found["none"] or found["finished"] < 1 for found in seen):
                raise Mistake(f"{elements} elements: the sum is not right on every rank", OTHER_SIZES)
    say(f"right with {' and '.join(map(str, UNEVEN))} elements, too")


def _looks(four: Ranks, attempt: Attempt, elements: int, hint: str) -> list[dict[str, Any]]:
    try:
        return list(on_ranks(four, _look, attempt, elements, hint=hint))
    except Mistake as mistake:
        if WAITING not in mistake.hint:
            raise
        raise Mistake(mistake.seen, STALLED) from mistake


def _judge_equal(seen: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    if any(found["none"] for found in seen):
        raise Mistake("it returns None", "return the sum")
    strange = sorted({name for found in seen for name in found["others"]})
    if strange:
        raise Mistake(f"it calls {', '.join(strange)}", "the ranks send and receive, and nothing else")
    finished = [found["finished"] for found in seen]
    if any(part < 1 for part in finished):
        said = (
            f"the share of elements that is right, by rank: {', '.join(f'{part:.0%}' for part in finished)}"
        )
        halfway = all(part == 1 / WORLD for part in finished)
        hint = f"the sums are ready, a part on each rank: pass them on, {WORLD - 1} times more"
        raise Mistake(
            said, hint if halfway else "follow one part around the ring: who adds what to it, and when?"
        )
    if any(found["changed"] for found in seen):
        raise Mistake(
            "the sum is right, but the argument has changed",
            "the tensor that it is given belongs to the caller: work in a copy",
        )
    sent = [sum(found["sent"]) for found in seen]
    right = 2 * (WORLD - 1) * ELEMENTS * 4 // WORLD
    said = (
        f"{WORLD} ranks, a tensor of {ELEMENTS * 4} bytes: messages {[len(found['sent']) for found in seen]}, "
        f"bytes sent {sent}; 2(n - 1)/n of the tensor is {right} bytes"
    )
    if len(set(sent)) > 1:
        raise Mistake(said, "some ranks send more than others, and the slowest link sets the time")
    if sent[0] != right:
        raise Mistake(said, f"cut the tensor into {WORLD} parts, and send one part at a time")
    if any(len(found["sent"]) != 2 * (WORLD - 1) for found in seen):
        raise Mistake(said, f"a ring takes {2 * (WORLD - 1)} steps, with one message a step")
    for rank, found in enumerate(seen):
        if len(found["peers"]) > 1:
            raise Mistake(
                f"rank {rank} sends to ranks {found['peers']}",
                "in a ring a rank sends to one neighbour only, and what it receives goes on from there",
            )
    say(said)


def _look(attempt: Attempt, elements: int) -> dict[str, Any]:
    me = here()
    sent: list[int] = []
    others: set[str] = set()
    peers: set[int] = set()

    def passed(func: Any, args: Any, kwargs: Any) -> Any:
        if func.name() == "c10d::send":
            peers.add(int(args[2]))
        return func(*args, **kwargs)

    def seen(name: str, size: int) -> None:
        if name == "send":
            sent.append(size)
        elif not name.startswith("recv"):
            others.add(name)

    x = torch.arange(float(elements)) + 100 * me.rank
    given = x.clone()
    with torch_compat.around_operators(passed), torch_compat.on_collective(seen):
        y = attempt(given)
    if y is None:
        return {"none": True, "others": others}
    total = torch.arange(float(elements)) * me.world_size + 100 * sum(range(me.world_size))
    finished = float((y == total).float().mean()) if y.shape == total.shape else 0.0
    changed = not torch.equal(given, x)
    return {
        "none": False, "others": others, "sent": sent, "peers": sorted(peers), "finished": finished,
        "changed": changed,
    }  # fmt: skip


ring = Exercise(
    "groups.ring",
    "a ring",
    "medium",
    15,
    (
        "the sum of four ranks on each of them, the argument unchanged",
        f"{2 * (WORLD - 1)} messages from each rank, all to one neighbour, "
        "with 2(n - 1)/n of the tensor's bytes in all",
        "sends and receives only",
    ),
    judge,
)
