"""Lesson 09: a module that counts its calls without compiling again, and the stage at which numbers begin to drift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit import torch_compat
from labkit.graphs.compile_log import install
from labkit.lessons.guards.drift import STAGES
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["BISECT", "COUNTER"]

CALLS = 12
MOST_GRAPHS = 2


def judge_counter(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Twelve calls of the compiled module: its numbers, its graphs, and that each of them ran compiled code."""
    hint = "it is called as my_counter() and returns a module, which is called as module(x)"
    seen = list(on_ranks(ranks, _count, attempt, hint=hint))
    for rank, found in enumerate(seen):
        if found.get("kind"):
            raise Mistake(f"my_counter() returns a {found['kind']}", hint)
        wrong = [i + 1 for i, ok in enumerate(found["right"]) if not ok]
        if wrong:
            raise Mistake(
                f"rank {rank}: call {wrong[0]} gives {found['values'][wrong[0] - 1]}",
                "the n-th call returns n times the sum over all ranks: count first, then multiply",
            )
    found = seen[0]
    finding = (
        f"graphs {found['graphs']}, breaks {found['breaks']}, calls without compiled code {found['eager']}"
    )
    if found["breaks"]:
        raise Mistake(
            finding,
            "to read a tensor's value (.item(), int(), float()) ends the graph: go on computing with the tensor",
        )
    if found["graphs"] > MOST_GRAPHS or found["eager"]:
        raise Mistake(
            finding,
            "an int on a module is part of the code, each value a version: what changes belongs into a buffer",
        )
    say(f"{CALLS} calls: {finding}, right numbers on {len(seen)} ranks")


def _count(attempt: Attempt) -> dict[str, Any]:
    module = attempt()
    if not isinstance(module, torch.nn.Module):
        return {"kind": type(module).__name__}
    torch_compat.dynamo_reset()
    made: list[Any] = []
    entered: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    known = {id(c) for c in install().known()}
    run = torch.compile(with_own_code(module), backend=keep)
    x = torch.ones(3) * (1 + dist.get_rank())
    total = sum(1 + rank for rank in range(dist.get_world_size()))
    values, eager = [], 0
    stop = torch_compat.on_region_entry(lambda code: entered.append(code))
    try:
        with torch.no_grad(), torch_compat.quiet_dynamo():
            for _ in range(CALLS):
                entered.clear()
                y = run(x.clone())
                values.append(None if y is None else (y + 0).tolist())
                eager += not entered
    finally:
        stop()
        torch_compat.dynamo_reset()
    new = [c for c in install().known() if id(c) not in known]
    right = [value == [float(total * (i + 1))] * 3 for i, value in enumerate(values)]
    broke = sum(c.broke or (c.skipped and "recompile limit" not in c.failure) for c in new)
    return {"values": values, "right": right, "graphs": len(made), "breaks": broke, "eager": eager}


NAN = float("nan")
PLAIN = (1.0, 2.0, 3.0)
# what run(stage) gives: eager's own numbers but for those named; the answer; the hint where it is another one
CASES: tuple[tuple[str, dict[str, tuple[float, ...]], str | None, str], ...] = (
    ("no stage differs", {}, None, "where no stage differs from eager the answer is None"),
    (
        "from the decompositions on",
        {"aot_eager_decomp_partition": (1.0, 2.5, 3.0), "inductor": (1.0, 2.5, 3.0)},
        "aot_eager_decomp_partition",
        "the first stage that differs from eager is asked for: go through them in their order",
    ),
    (
        "by one unit in the last place, in inductor",
        {"inductor": (1.0, 2.0000002384185791, 3.0)},
        "inductor",
        "a tolerance hides the smallest drift: compare bit for bit",
    ),
    (
        "in AOTAutograd, and inductor happens to give eager's numbers again",
        {"aot_eager": (1.5, 2.0, 3.0)},
        "aot_eager",
        "a later stage may hide an earlier one: do not look at the last one to decide whether to look at all",
    ),
    (
        "NaN in the same places everywhere",
        dict.fromkeys(["plain", *STAGES], (1.0, NAN, 3.0)),
        None,
        "NaN is not equal to itself: two NaN in the same place are no drift",
    ),
)


def judge_bisect(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The attempt's answer for every case; the first wrong one decides the hint."""
    hint = (
        "it is called as my_bisect(run, stages): run('plain') is eager's tensor, run(stage) that of a stage"
    )
    answers = on_ranks(ranks, _bisect, attempt, only=0, hint=hint, timeout=30)[0]
    for (said, _, right, why), answer in zip(CASES, answers, strict=True):
        finding = f"{said}: it says {answer}"
        if answer is not None and answer not in STAGES:
            raise Mistake(finding, "return the name of a stage, or None")
        if answer != right:
            raise Mistake(finding, why)
        say(finding)


def _bisect(attempt: Attempt) -> list[Any]:
    answers = []
    for _, numbers, _, _ in CASES:

        def run(stage: str, numbers: dict[str, tuple[float, ...]] = numbers) -> Any:
            if stage != "plain" and stage not in STAGES:
                raise ValueError(f"there is no stage {stage!r}: 'plain', {', '.join(STAGES)}")
            return torch.tensor(numbers.get(stage, PLAIN))

        answer = attempt(run, tuple(STAGES))
        answers.append(answer if answer is None or isinstance(answer, str) else repr(answer))
    return answers


COUNTER = Exercise(
    "guards.counter",
    "a module that counts its calls",
    "medium",
    10,
    (
        f"at most {MOST_GRAPHS} graphs in {CALLS} calls",
        "no break, and compiled code in every call",
        "the n-th call returns n times the sum over all ranks",
    ),
    judge_counter,
)
BISECT = Exercise(
    "guards.bisect",
    "where the drift begins",
    "easy",
    5,
    ("the first stage whose numbers are not eager's, bit for bit", "None where there is none"),
    judge_bisect,
)
