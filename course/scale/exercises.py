"""Lesson 16: how many ranks make a step shortest, when work shrinks and the ring grows?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from course.shared.costs import terms
from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["best_world"]

WORLDS = tuple(2**i for i in range(11))
# bytes: two norms, attention output, MLP output of 2,048 tokens x 16,384
BLOCK = (8192, 8192, 134217728, 134217728)
SMALL = (128, 128, 131072, 131072)
# (what it is, worlds, flops of the whole step, bytes of its messages, alpha in s, beta in s a byte, flops a second)
CASES: tuple[tuple[Any, ...], ...] = (
    ("a slow start, a wide link", WORLDS, 8e8, SMALL, 6e-5, 1e-11, 2e10),
    ("a large block over NVLink's order of size", WORLDS, 1.3e13, BLOCK, 5e-6, 1 / 300e9, 4e14),
    ("a large block over Ethernet's", WORLDS, 1.3e13, BLOCK, 2e-5, 1 / 1e9, 4e14),
    ("a fast link and slow cores", WORLDS, 1.3e13, BLOCK, 1e-6, 1 / 100e9, 1e11),
    ("three worlds to choose from", (2, 16, 128), 8e8, SMALL, 1e-5, 1e-10, 2e10),
    ("no work to speak of", WORLDS, 1e3, SMALL, 1e-5, 1e-10, 2e10),
)
Price = Callable[[int, float, float, float], float]  # of one message: world size, bytes, alpha, beta


def _ring(p: int, n: float, alpha: float, beta: float) -> float:
    steps, sent = terms("all_reduce", p, n)
    return steps * alpha + sent * beta


# what one would write first, with the hint for it
MISTAKES: dict[str, tuple[Price, str]] = {
    "no_latency": (
        lambda p, n, a, b: 2 * (p - 1) / p * n * b,
        "the steps are free in it: a ring has 2 (p - 1) of them, each costs alpha, whatever the message",
    ),
    "no_bandwidth": (
        lambda p, n, a, b: 2 * (p - 1) * a,
        "the bytes decide nothing in it, as if they were free or as many in every world: a rank sends 2 (p - 1) / p of "
        "each message, which is none in a world of one",
    ),
    "one_way": (
        lambda p, n, a, b: (p - 1) * a + (p - 1) / p * n * b,
        "that is half of an all_reduce: its ring goes round twice, to add up and to hand out the sums",
    ),
    "whole_message_each_step": (
        lambda p, n, a, b: 2 * (p - 1) * (a + n * b),
        "a step of the ring sends a p-th of the message, not the whole of it",
    ),
    "shrinking_messages": (
        lambda p, n, a, b: _ring(p, n / p, a, b),
        "it lets the messages shrink with the world: look at the trace, they are as large on 1,024 ranks as on two",
    ),
    "doubling": (
        lambda p, n, a, b: math.ceil(math.log2(p)) * (a + n * b) if p > 1 else 0.0,
        "that is recursive doubling, log2 p steps of the whole message: here a ring is asked for",
    ),
    "no_communication": (
        lambda p, n, a, b: 0.0,
        "the largest world wins every time in it: what the four all_reduces cost has to be added",
    ),
}


def best(
    worlds: Sequence[int], flops: float, messages: Sequence[float], alpha: float, beta: float, rate: float,
    *,
    price: Price = _ring,
) -> int:  # fmt: skip
    """The world in which a step is shortest, by the model; `price` is what an all_reduce costs in it."""
    return min(worlds, key=lambda p: flops / p / rate + sum(price(p, n, alpha, beta) for n in messages))


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The right world in every case; a wrong one is matched with the models that one would write first."""
    hint = "it is called as my_best_world(worlds, flops, messages, alpha, beta, rate) and returns one of the worlds"
    given = [case[1:] for case in CASES]
    answers = on_ranks(ranks, quietly, _asked, attempt, given, only=0, hint=hint)[0]
    for (what, *case), answer in zip(CASES, answers, strict=True):
        worlds, right = case[0], best(*case)
        if answer not in worlds:
            raise Mistake(f"{what}: it says {answer!r}, which is none of {list(worlds)}", hint)
        if answer != right:
            raise Mistake(f"{what}: it says {answer:,}, and {right:,} is right", _why(answers))
        say(f"{what}: {answer:,} rank{'s' * (answer != 1)}")


def _asked(attempt: Attempt, given: Sequence[tuple[Any, ...]]) -> list[Any]:
    def plain(value: Any) -> Any:
        whole = isinstance(value, (int, float)) and not isinstance(value, bool)
        return int(value) if whole and value == int(value) else repr(value)

    return [
        plain(attempt(*(list(part) if isinstance(part, tuple) else part for part in case))) for case in given
    ]


def _why(answers: Sequence[Any]) -> str:
    for price, said in MISTAKES.values():
        if list(answers) == [best(*case[1:], price=price) for case in CASES]:
            return said
    if list(answers) == [min(case[1]) for case in CASES]:
        return "the smallest world has the smallest share of communication, and the longest work: compare whole steps"
    return (
        "a step is flops / p / rate, and for every message 2 (p - 1) alpha + 2 (p - 1) / p x bytes x beta: take the "
        "world in which the sum is least"
    )


best_world = Exercise(
    "scale.best_world",
    "the world that makes a step shortest",
    "medium",
    10,
    (
        "the world size in which the model's step is shortest, of those to choose from",
        "work is divided by the world; every message is an all_reduce of a ring",
    ),
    judge,
)
