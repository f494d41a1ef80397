"""Lesson 05, `trap.measure`: the loop that compares variants on ranks, judged by variants that know when they ran."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch

from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import on_eager_collective

__all__ = ["measure"]

NAMES, ROUNDS = ("first", "uneven", "late"), 5
SLEEP_S, CLOSE = 0.008, 0.2  # a unit; how far a ratio may be from what the variants took
# units by call, from the start again after a round's worth: the machine changes its pace, so that the median of the
# ratios is neither the smallest nor the mean one, and no ratio of medians; the ranks differ as well
UNITS = {"first": (1, 1, 1, 2, 3), "uneven": (1, 4, 16, 24, 16), "late": (0,) * ROUNDS}
ON_THE_LAST, ON_OTHERS = 0.7, 0.25  # the last rank needs less for `first`, the others need less for `uneven`
HINTS = {
    "ranks": "each rank has timed itself: in each round the time of the slowest rank counts, on all of them",
    "device": "the call has returned and the device works on: synchronize it, or read an element of the result",
    "rounds": "one disturbed round moves a mean: take the median over the rounds",
    "smallest": "the smallest ratio is that of one round in which the first variant was slow: the median is asked for",
    "medians": "two medians can be of different rounds: divide within each round, and then take the median",
    "each rank": "these are ratios of single ranks: first the slowest rank's time of each variant, then divide",
    "mean of the ranks": "the mean of the ranks hides the slow one, and the others wait for it: take the slowest",
    "barrier": "the clock starts before the barrier, so it times the wait for the others as well",
}
Call = dict[str, Any]  # name; and the times asked (of the collective before it), began, returned, ended


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Interleaved rounds, a barrier before each call, the slowest rank, and the median of the ratios."""
    hint = "it is called as my_measure(variants, rounds) on every rank, and returns a dict: a ratio for each name"
    seen = list(on_ranks(ranks, _look, attempt, hint=hint))
    results = [found["result"] for found in seen]
    if any(not _is_ratios(result) for result in results):
        said = f"it returns {str(results[0])[:80]}"
        raise Mistake(said, "return a dict: for the name of each variant its ratio")
    made = [call["name"] for call in seen[0]["calls"]]
    said = f"{ROUNDS} rounds, calls: {', '.join(f'{name} {made.count(name)}' for name in NAMES)}"
    if min(map(made.count, NAMES)) <= ROUNDS:
        raise Mistake(said, "first calls compile and fill caches: call each variant before anything is timed")
    say(said)
    by_rank = [_rounds(found["calls"]) for found in seen]
    orders = [[tuple(call["name"] for call in calls) for calls in rounds] for rounds in by_rank]
    said = f"the order on rank 0: {', '.join('-'.join(order) for order in orders[0][:3])}, ..."
    if any(set(order) != set(NAMES) for order in orders[0]):
        raise Mistake(
            said, "a machine that slows down has to slow all variants: call each of them in each round"
        )
    if any(order != orders[0] for order in orders):
        raise Mistake(
            said, "another rank has another order: a variant's collective would meet that of another one"
        )
    if len(set(orders[0])) == 1:
        raise Mistake(said, "each variant always follows the same one: turn the order from round to round")
    say(said)
    calls = [call for rounds in by_rank for calls in rounds for call in calls]
    if any(call["asked"] is None for call in calls):
        bare = next(call["name"] for call in calls if call["asked"] is None)
        raise Mistake(
            f"no collective between {bare} and the call before it",
            "the ranks come to a call at different times: a barrier before each call that is timed",
        )
    truth, others = _ratios(by_rank), _mistakes(by_rank)
    said = "; ".join(f"rank {rank}: {_said(result)}" for rank, result in enumerate(results))
    if not all(call["waited"] for call in calls):
        raise Mistake(said, HINTS["device"])
    if any(not _close(result, results[0]) for result in results):
        raise Mistake(said, HINTS["ranks"])
    if not _close(results[0], truth):
        mistake = min(others, key=lambda name: _apart(results[0], others[name]))
        hint = f"{_said(truth)} is right: by the first variant, in the same round"
        raise Mistake(said, HINTS[mistake] if _apart(results[0], others[mistake]) < 2 * CLOSE else hint)
    say(said)


def _is_ratios(result: Any) -> bool:
    return (
        isinstance(result, dict)
        and set(result) == set(NAMES)
        and all(isinstance(ratio, float) for ratio in result.values())
    )


def _rounds(calls: list[Call]) -> list[list[Call]]:
    """The calls that were timed: the last ones."""
    timed = calls[-len(NAMES) * ROUNDS :]
    return [timed[start : start + len(NAMES)] for start in range(0, len(timed), len(NAMES))]


def _ratios(
    by_rank: list[list[list[Call]]],
    began: str = "began",
    ended: str = "ended",
    of_ranks: Callable[[Iterable[float]], float] = max,
    of_rounds: Callable[[Iterable[float]], float] = statistics.median,
    divide_first: bool = True,
) -> dict[str, float]:
    """What a loop returns that takes these times and these means."""
    seconds = [
        {
            name: of_ranks(
                call[ended] - call[began] for calls in ranks for call in calls if call["name"] == name
            )
            for name in NAMES
        }
        for ranks in zip(*by_rank, strict=True)
    ]
    if not divide_first:
        seconds = [{name: of_rounds(took[name] for took in seconds) for name in NAMES}]
    return {name: of_rounds(took[name] / took[NAMES[0]] for took in seconds) for name in NAMES}


def _mistakes(by_rank: list[list[list[Call]]]) -> dict[str, dict[str, float]]:
    """What a loop returns that makes one of the mistakes in HINTS."""
    return {
        "device": _ratios(by_rank, ended="returned"),
        "barrier": _ratios(by_rank, began="asked"),
        "rounds": _ratios(by_rank, of_rounds=statistics.fmean),
        "smallest": _ratios(by_rank, of_rounds=min),
        "medians": _ratios(by_rank, divide_first=False),
        "each rank": {
            name: max(ratios[name] for ratios in (_ratios([rank]) for rank in by_rank)) for name in NAMES
        },
        "mean of the ranks": _ratios(by_rank, of_ranks=statistics.fmean),
    }


def _apart(one: dict[str, float], other: dict[str, float]) -> float:
    return max(abs(one[name] - other[name]) / (other[name] + 0.5) for name in NAMES)


def _close(one: dict[str, float], other: dict[str, float]) -> bool:
    return _apart(one, other) < CLOSE


def _said(ratios: dict[str, float]) -> str:
    return ", ".join(f"{name} {ratios[name]:.1f}" for name in NAMES)


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: variants that note their calls; collectives take longer here, so that nobody can overlook them."""
    me, last = here(), here().rank == here().world_size - 1
    calls: list[Call] = []
    asked: list[float] = []
    pending: list[Call] = []

    def collective(name: str, group: Any) -> None:
        if name != "get_world_size":
            asked.append(time.perf_counter())
            time.sleep(3 * SLEEP_S)

    def arrive(*args: Any) -> None:
        for call in pending:
            time.sleep(3 * SLEEP_S)
            call |= {"ended": time.perf_counter(), "waited": True}
        pending.clear()

    class Late(torch.Tensor):
        """A result that is there once it has been used, or the device was waited for."""

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func.__name__ != "__get__":  # of an attribute, such as is_cuda
                arrive()
            return super().__torch_function__(func, types, args, kwargs or {})

    def call(name: str, seconds: float) -> torch.Tensor:
        before = asked[-1] if asked else None
        asked.clear()
        began = time.perf_counter()
        time.sleep(seconds)
        returned = time.perf_counter()
        calls.append({"name": name, "asked": before, "began": began, "returned": returned, "ended": returned})
        calls[-1]["waited"] = name != "late"
        result = torch.zeros(1, 1, 1, device=me.device)
        if name != "late":
            return result
        pending.append(calls[-1])
        return result.as_subclass(Late)

    def variant(name: str) -> torch.Tensor:
        units = UNITS[name][sum(made["name"] == name for made in calls) % ROUNDS]
        share = ON_THE_LAST if name == "first" and last else ON_OTHERS if name == "uneven" and not last else 1
        return call(name, SLEEP_S * units * share)

    variants = {name: functools.partial(variant, name) for name in NAMES}
    with on_eager_collective(collective), mock.patch.object(torch.cuda, "synchronize", arrive):
        return {"result": attempt(variants, ROUNDS), "calls": calls}


measure = Exercise(
    "trap.measure",
    "a measuring loop",
    "medium",
    15,
    (
        "each variant called before anything is timed, then once in each round, in an order that changes",
        "a barrier before each timed call, and the work done when the clock stops",
        "the same ratios on every rank: the slowest rank's time divided by that of the first variant in the same "
        "round, and of these the median",
    ),
    judge,
)
