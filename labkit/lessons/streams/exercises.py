"""Lesson 06: programs that the reader writes down, simulated, and an overlap on ranks that cannot be by chance."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.streams import Program, StreamError, Timeline, ops, simulate
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import default_store, on_operator

__all__ = ["HIDE", "ORDER", "WAIT"]

LAYERS, COMPUTE, REDUCE, UPDATE = 4, 3, 2, 1
LIMIT, HIDDEN = 9.0, 0.6
PATIENCE_S = 5.0


def judge_order(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Three kernels, one of which needs another: no race, the host never stands, and no more waiting than needed."""
    found, program = _simulated(attempt, ranks, "my_order(program)", "side")
    kernels = {op.name: op for op in program if isinstance(op, ops.Kernel)}
    wanted = {"produce": (4, "default"), "other": (5, "default"), "consume": (4, "side")}
    for name, (duration, stream) in wanted.items():
        op = kernels.get(name)
        if op is None or (op.duration, op.stream) != (duration, stream):
            raise Mistake(
                f"kernel {name!r} is {'missing' if op is None else f'{op.duration} on {op.stream!r}'}",
                f"keep the kernels as they are given: {name!r} takes {duration} on {stream!r}",
            )
    if kernels["produce"].writes != ("x",) or kernels["consume"].reads != ("x",):
        raise Mistake("x is not handed over", "produce writes x and consume reads it: keep both")
    _in_order(found)
    if found.makespan > LIMIT:
        raise Mistake(
            f"no race, {found.makespan:g} units",
            "the event also stands for `other`, which nobody needs: record it directly behind what is needed",
        )
    say(f"no race, the host never stands, {found.makespan:g} units")


def judge_hide(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """A backward pass of four layers with an all-reduce each and a step that needs all of them."""
    found, program = _simulated(attempt, ranks, "my_backward(program)", "comm")
    kernels = [op for op in program if isinstance(op, ops.Kernel)]
    wanted = {
        **{f"backward {i}": (COMPUTE, "compute") for i in range(LAYERS)},
        **{f"all_reduce {i}": (REDUCE, "collective") for i in range(LAYERS)},
        "step": (UPDATE, "compute"),
    }
    there = {op.name: (op.duration, op.kind) for op in kernels}
    if there != wanted or len(kernels) != len(wanted):
        wrong = next((n for n in wanted if there.get(n) != wanted[n]), "something more")
        raise Mistake(
            f"{wrong!r} is not as it was given",
            "the work stays as it is: the same kernels, each once, with the same durations",
        )
    for i in range(LAYERS):
        op = next(op for op in kernels if op.name == f"all_reduce {i}")
        if f"g{i}" not in op.reads or f"g{i}" not in op.writes:
            raise Mistake(f"{op.name!r} does not touch g{i}", f"all_reduce {i} reads and writes g{i}")
    step = next(op for op in kernels if op.name == "step")
    if not {f"g{i}" for i in range(LAYERS)} <= set(step.reads):
        raise Mistake("the step does not read all gradients", "the step reads g0 to g3")
    _in_order(found)
    if any(op.stream == "default" for op in kernels if op.kind == "collective"):
        raise Mistake(
            f"{found.hidden():.0%} is hidden",
            "a stream is a queue: what stands on the compute stream is beside nothing; communicate on 'comm'",
        )
    said = f"no race, {found.hidden():.0%} of the communication is hidden, {found.makespan:g} units"
    if found.hidden() < HIDDEN:
        raise Mistake(
            said,
            "a layer waits for a sum that only the step needs: let the compute stream wait once, before the step",
        )
    say(said)


def judge_wait(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The peer joins the all-reduce once rank 0 is computing, so a rank that waits first never computes beside it."""
    hint = "it is called as my_step(g, compute) and returns the sum and what compute() returned"
    seen = on_ranks(ranks, _look, attempt, hint=hint, timeout=60)
    first = seen[0]
    if any(found["none"] for found in seen):
        raise Mistake(
            "it does not return two values", "return g, result: the sum, and what compute() returned"
        )
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

    dist.barrier()
    with on_operator(lambda name: started.append(name) if "c10d" in name else None):
        if me.rank:
            until = time.monotonic() + PATIENCE_S
            while not store.check([f"{key}/computing"]) and time.monotonic() < until:
                time.sleep(0.01)
            if not store.check([f"{key}/computing"]):
                store.set(f"{key}/gave up", "1")
            time.sleep(0.2)  # now rank 0 would have to wait for the sum
        found = attempt(g, compute)
        pair = isinstance(found, (tuple, list)) and len(found) == 2
        right = pair and isinstance(found[0], torch.Tensor) and found[0].tolist() == [total] * 4
    result = {**seen, "none": not pair, "right": bool(right)}
    time.sleep(0.3)  # a sum that nobody waited for arrives before the ranks are used again
    dist.barrier()
    return result


def _simulated(attempt: Attempt, ranks: Ranks, called: str, stream: str) -> tuple[Timeline, Program]:
    """The attempt writes into an empty program, on a rank: there it may run for ever without harm."""
    ops_found = on_ranks(
        ranks, _write, attempt, stream, only=0, hint=f"it is called as {called}", timeout=30
    )[0]
    if isinstance(ops_found, str):
        raise Mistake(ops_found, "the program says what is wrong with it: look at the op that it names")
    if not ops_found:
        raise Mistake("the program is empty", "call the methods of the program that you are given")
    program = Program.of(ops_found, "your program", stream)
    try:
        return simulate(program), program
    except StreamError as error:
        raise Mistake(str(error), "the ops that it names wait for each other") from None


def _write(attempt: Attempt, stream: str) -> list[ops.Op] | str:
    program = Program("your program", stream)
    try:
        attempt(program)
    except StreamError as error:
        return str(error)
    return program.ops


def _in_order(found: Timeline) -> None:
    """Raise Mistake for a race, and for a host that stands still."""
    if found.races:
        raise Mistake(f"a race, {found.races[0].text}", found.races[0].remedy)
    if len(found.spans[found.spans["kind"] == "synchronize"]):
        raise Mistake(
            "no race, and the host stands still",
            "a synchronize stops the host, and with it everything that comes after: let a stream wait, not the host",
        )


ORDER = Exercise(
    "streams.order",
    "an event in the right place",
    "easy",
    5,
    (
        "the three kernels as they are given",
        "no race",
        "the host never stands still",
        f"{LIMIT:g} units in all",
    ),
    judge_order,
)
HIDE = Exercise(
    "streams.hide",
    "hide the gradients' sums",
    "medium",
    15,
    (
        "the work as it is given",
        "no race",
        "the host never stands still",
        f"hide {HIDDEN:.0%} of the communication",
    ),
    judge_hide,
)
WAIT = Exercise(
    "streams.wait",
    "compute while it travels",
    "medium",
    5,
    ("the sum on every rank", "`compute()` called once, while the all-reduce is under way"),
    judge_wait,
)
