"""Lesson 15: a tripwire that stops every rank, and a leader that leaves no worker waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from labkit.contract import Exchange, announce, receive
from labkit.contract.exchange import listed
from labkit.ranks import RankError, Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["LEAD", "TRIPWIRE"]

# what rank 1 holds where rank 0 has (1, 2, nan, 4); whether all ranks have to raise; the hint where that goes wrong
_INPUTS: tuple[tuple[str, tuple[float, ...], bool, str], ...] = (
    ("the same on both", (1, 2, float("nan"), 4), False,
     "a NaN equals no NaN, but its bits do: compare digests (contract.digest), not values"),
    ("one element off by 1e-6", (1, 2.000001, float("nan"), 4), True,
     "a tolerance lets drift through: bit by bit means that every bit counts"),
    ("the same elements in another order", (2, 1, float("nan"), 4), True,
     "a sum does not see an order: compare a digest of all the bits"),
    ("one element more", (1, 2, float("nan"), 4, 5), True,
     "another shape has to be noticed, too, before a collective meets it: compare over the exchange"),
)  # fmt: skip


def judge_tripwire(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Every rank raises where one input differs, and none where they are the same."""
    hint = "it is called as my_tripwire(exchange, x) on every rank"
    for what, other, wanted, wrong in _INPUTS:
        ends = list(on_ranks(ranks, _trip, attempt, other, hint=hint))
        raised = [rank for rank, end in enumerate(ends) if end]
        if "NotImplementedError" in ends:
            raise Mistake("there is nothing to check yet: write the body of the function first")
        finding = f"{what}: {'raised on rank ' + listed(raised) if raised else 'let through'}"
        if raised and len(raised) < len(ends):
            raise Mistake(
                finding, "the ranks that did not raise go on into the next collective: all raise, or none"
            )
        if bool(raised) != wanted:
            raise Mistake(f"{finding}{', ' + ends[0] if raised else ''}", wrong)
        say(finding)


def _trip(attempt: Attempt, other: tuple[float, ...]) -> str:
    exchange = Exchange.connect("exercise-tripwire", timeout=15.0)
    values = other if exchange.rank else (1, 2, float("nan"), 4)
    try:
        attempt(exchange, torch.tensor(values))
    except Exception as error:
        return type(error).__name__
    return ""


# what the leader is asked to send, and whether that can be done
_ASKED = (("good", True), ("a lock in the metadata", False), ("good again", True))


def judge_lead(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Workers get every message that can be sent, whole, and do not wait for one that cannot."""
    hint = "it is called as my_lead(exchange, meta, tensors) on rank 0, once for each message"
    try:
        seen = list(on_ranks(ranks, _lead, attempt, hint=hint))
    except Mistake as mistake:
        if not (isinstance(mistake.__cause__, RankError) and mistake.__cause__.ended == "stalled"):
            raise
        strands = "a worker is left waiting: preflight before you announce, and announce 'noop' for what cannot be sent"
        raise Mistake(mistake.seen, strands) from mistake
    for index, (what, sendable) in enumerate(_ASKED):
        action, got = seen[1][index]
        finding = f"{what}: the worker hears {action!r}{', and gets ' + got if got else ''}"
        if action == "infer" and not sendable:
            raise Mistake(
                finding, "what cannot be sent is not sent in part: the worker would compute something else"
            )
        if action != "infer" and sendable:
            raise Mistake(finding, "a message that can be sent is announced as Plan('infer') and then sent")
        if sendable and got != "steps 4, x (4,)":
            raise Mistake(
                f"{finding}, meant are steps 4, x (4,)", "send what preflight made: meta and tensors as given"
            )
        say(finding)


def _lead(attempt: Attempt) -> list[tuple[str, str]]:
    exchange = Exchange.connect("exercise-lead", timeout=15.0)
    heard = []
    for what, sendable in _ASKED:
        if exchange.rank == 0:
            meta = {"steps": 4} if sendable else {"steps": 4, "lock": threading.Lock()}
            attempt(exchange, meta, {"x": torch.ones(4)})
            heard.append((what, ""))
            continue
        plan, got = announce(exchange), ""
        if plan.action == "infer":
            meta, tensors = receive(0)
            got = f"steps {meta.get('steps')}, x {tuple(tensors['x'].shape) if 'x' in tensors else 'missing'}"
        heard.append((plan.action, got))
    return heard


TRIPWIRE = Exercise(
    "break_it.tripwire",
    "a tripwire that stops every rank",
    "easy",
    5,
    ("inputs that are the same pass", "any other bit, order or shape raises on every rank"),
    judge_tripwire,
)
LEAD = Exercise(
    "break_it.lead",
    "a leader that strands nobody",
    "medium",
    10,
    (
        "every message that can be sent arrives whole",
        "for one that cannot, the worker hears 'noop' and waits for nothing",
    ),
    judge_lead,
)
