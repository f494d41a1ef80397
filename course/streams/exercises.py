"""Lesson 06: races in torch code, judged by capturing the attempt; and an overlap on ranks that cannot be by chance."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course.shared.streams import StreamError, Timeline, ops, simulate
from course.streams.capture import Captured, capture
from labkit import lessons
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import around_operators, default_store

__all__ = ["orders", "place", "repair", "wait"]

UNITS = {"mm": 4.0}  # of the simulation; every other kernel takes 1
REPAIRED, PLACED = 10.0, 13.0
PATIENCE_S = 5.0


def judge_repair(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The record comes too early, and the memory of h is given out again while the side stream reads it."""
    x, w = torch.full((4, 4), 0.25), torch.full((4, 4), 0.5)
    found, program = _captured(attempt, ranks, "my_repair(x, w)", x, w)
    _kernels(program, {"mm": 3, "relu": 1, "add": 1})
    sides = {op.stream for op in program if isinstance(op, ops.Kernel) and op.stream != "default"}
    if not sides:
        raise Mistake("everything is on one stream", "keep `norm` in the block of the side stream")
    h = x @ w
    _sound(found, program, torch.relu(x) @ w + h @ h)
    if found.makespan > REPAIRED:
        raise Mistake(
            f"no race, {found.makespan:g} units",
            "a stream waits that need not: record_stream keeps the memory of h without a wait, and so does a name",
        )
    say(f"no race, {found.makespan:g} units [simulated]")


def judge_place(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """One wait, before the first kernel that needs b and not earlier."""
    x = torch.full((4, 4), 0.25)
    found, program = _captured(attempt, ranks, "my_place(x, log)", x, torch.zeros(4, 4))
    _kernels(program, {"mm": 6, "add": 1, "copy_": 1})
    b = x @ x
    _sound(found, program, (b @ x + b) @ x)
    waits = [op for op in program if isinstance(op, (ops.Wait, ops.WaitStream)) and op.stream == "default"]
    if found.makespan > PLACED:
        late = any(isinstance(op, ops.WaitStream) for op in waits)
        raise Mistake(
            f"no race, {found.makespan:g} units",
            "wait_stream also waits for `log`, which nobody needs: wait for the event"
            if late
            else "the wait holds up everything behind it: put it directly before the first line that reads b",
        )
    if len(waits) != 1:
        raise Mistake(
            f"{len(waits)} waits on the current stream", "one wait is enough: everything behind it is held"
        )
    say(f"no race, one wait, {found.makespan:g} units [simulated]")


def judge_orders(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The names of the racing ones among the lesson's three functions, which are captured and checked."""
    answer = on_ranks(ranks, attempt, only=0, hint="it is called as my_orders()", timeout=30)[0]
    three = {f.__name__: f for f in lessons.program("streams").THREE_ORDERS}
    if not isinstance(answer, (list, tuple, set)) or not set(answer) <= set(three):
        raise Mistake(f"it returns {answer!r:.80}", f"return a list with names out of {', '.join(three)}")
    races = {name: simulate(capture(f, torch.ones(4, 4))).races for name, f in three.items()}
    if spared := sorted(name for name in races if races[name] and name not in answer):
        raise Mistake(
            f"{spared[0]} races, and is not in the list",
            "for each access on the side stream ask: which mark lets the current stream's next write wait for it?",
        )
    if blamed := sorted(name for name in answer if not races[name]):
        raise Mistake(
            f"{blamed[0]} is in the list, and does not race",
            "follow the arrows: a record stands for all that is in its queue so far, and two reads are no race",
        )
    say(f"{', '.join(sorted(answer))}: {races[sorted(answer)[0]][0].text}")


def judge_wait(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The peer joins the all-reduce once rank 0 is computing, so a rank that waits first never computes beside it."""
    hint = "it is called as my_step(g, compute) and returns the sum and what compute() returned"
    seen = on_ranks(ranks, _look, attempt, hint=hint, timeout=60)
    first = seen[0]
    if any(found["none"] for found in seen):
        raise Mistake(
            "it does not return two values", "return g, result: the sum, and what compute() returned"
        )
    if any(found["first"] != "Tensor" for found in seen):
        raise Mistake(f"what it returns first is a {first['first']}", "first the sum, then the other value")
    if any(found["computed"] != 1 for found in seen):
        raise Mistake(
            f"compute() was called {first['computed']} times",
            "call compute() once: it is the work to hide behind",
        )
    if first["started"] != "collective first":
        raise Mistake(
            "rank 0 computed before it had started its all-reduce",
            "nothing is under way while you compute: start the collective first",
        )
    if not first["beside"]:
        raise Mistake(
            "rank 0 had the sum before it began to compute",
            "it waits too early: async_op=True gives a Work, and its wait() belongs behind compute()",
        )
    if any(not found["right"] for found in seen):
        raise Mistake(
            "the sum had not arrived when it was returned",
            "somebody has to wait: call wait() on the Work before you hand the sum on",
        )
    say("right sums; while rank 0 computed, its all-reduce was under way")


# --- on a rank ---


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: rank 1 joins when rank 0 computes, or when it has waited long enough to know that rank 0 does not."""
    me, store = here(), default_store()
    turn = int(store.add(f"streams.wait/turn/{me.rank}", 1))
    key, seen = f"streams.wait/{turn}", {"computed": 0, "beside": False, "started": "collective first"}
    g = torch.full((4,), float(me.rank + 1), device=me.device)
    total = sum(range(1, me.world_size + 1))
    started: list[str] = []

    def compute() -> float:
        seen["computed"] += 1  # type: ignore[operator]
        if me.rank == 0 and seen["computed"] == 1:
            if not started:
                seen["started"] = "compute first"
            # the peer is held up until this key is there: the sum cannot have come unless it gave up waiting
            seen["beside"] = not store.check([f"{key}/gave up"])
            store.set(f"{key}/computing", "1")
            time.sleep(0.05)
        return 42.0

    def operator(func: Any, args: Any, kwargs: Any) -> Any:
        if "c10d" in str(func):
            started.append(str(func))
        return func(*args, **kwargs)

    dist.barrier()
    with around_operators(operator):
        if me.rank:
            until = time.monotonic() + PATIENCE_S
            while not store.check([f"{key}/computing"]) and time.monotonic() < until:
                time.sleep(0.01)
            if not store.check([f"{key}/computing"]):
                store.set(f"{key}/gave up", "1")
            time.sleep(0.2)  # now rank 0 would have to wait for the sum
        found = attempt(g, compute)
        pair = isinstance(found, (tuple, list)) and len(found) == 2
        tensor = pair and isinstance(found[0], torch.Tensor)
        right = tensor and found[0].tolist() == [total] * 4
    kind = "Tensor" if tensor or not pair else type(found[0]).__name__
    result = {**seen, "none": not pair, "first": kind, "right": bool(right)}
    time.sleep(0.3)  # a sum that nobody waited for arrives before the ranks are used again
    dist.barrier()
    return result


def _captured(attempt: Attempt, ranks: Ranks, called: str, *given: Any) -> tuple[Timeline, Captured]:
    """The attempt is captured on a rank: there it may run for ever without harm."""
    hint = f"it is called as {called}"
    found = on_ranks(ranks, _capture, attempt, given, only=0, hint=hint, timeout=30)[0]
    if isinstance(found, str):
        raise Mistake(found, "look at the op that it names")
    return simulate(found), found


def _capture(attempt: Attempt, given: Any) -> Captured | str:
    try:
        return capture(_named(attempt), *given, units=UNITS)
    except StreamError as error:
        return str(error)


def _named(attempt: Attempt) -> Attempt:
    """A function for what has no name: a functools.partial, or an object that can be called."""
    if hasattr(attempt, "__name__"):
        return attempt

    def called(*given: Any) -> Any:
        return attempt(*given)

    called.__signature__ = inspect.signature(attempt)  # type: ignore[attr-defined]
    return called


def _kernels(program: Captured, wanted: dict[str, int]) -> None:
    """Raise Mistake where the work is not as it was given."""
    found = {name: program.operators.count(name) for name in program.operators}
    if found != wanted:
        said = ", ".join(f"{count} {name}" for name, count in found.items()) or "no kernel"
        given = ", ".join(f"{count} {name}" for name, count in wanted.items())
        raise Mistake(f"it runs {said}", f"the work stays as it is given: {given}")


def _sound(found: Timeline, program: Captured, right: torch.Tensor) -> None:
    """Raise Mistake for a race, a host that stands still, and another value."""
    if found.races:
        raise Mistake(f"a race, {found.races[0].text}", found.races[0].remedy)
    if any(isinstance(op, ops.Synchronize) for op in program):
        raise Mistake(
            "no race, and the host stands still",
            "a synchronize stops the host, and with it everything that comes after: let a stream wait, not the host",
        )
    if not isinstance(program.value, torch.Tensor) or not torch.allclose(program.value, right):
        raise Mistake("no race, and another value is returned", "return what the given function returns")


repair = Exercise(
    "streams.repair",
    "two races in ten lines",
    "medium",
    10,
    (
        "the same work and the same value",
        "`norm` on a side stream",
        "no race",
        "the host never stands still",
        f"{REPAIRED:g} units in all",
    ),
    judge_repair,
)
place = Exercise(
    "streams.place",
    "one wait in the right place",
    "easy",
    5,
    (
        "the same work and the same value",
        "one wait on the current stream",
        "no race",
        "the host never stands still",
        f"{PLACED:g} units in all",
    ),
    judge_place,
)
orders = Exercise(
    "streams.orders",
    "which order races?",
    "easy",
    5,
    ("a list with the name of each function that races, and of no other",),
    judge_orders,
)
wait = Exercise(
    "streams.wait",
    "compute while it travels",
    "medium",
    5,
    ("the sum on every rank", "`compute()` called once, while the all-reduce is under way"),
    judge_wait,
)
