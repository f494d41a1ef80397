"""Lesson 08: what to compare at start-up, what to plan for a call, and a branch that no rank takes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.contract import ParityError, Plan, PlanError, agree, assert_parity, rehearse
from labkit.graphs import record
from labkit.lessons.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset

__all__ = ["PARITY", "PLAN", "REPAIR", "Config", "generate"]


class Config:
    """What a rank knows of itself: `rank`, `host`, `compile`, `fullgraph`, `attention` as asked, and `resolve()`."""

    def __init__(self, rank: int, attention: str = "auto", chosen: str = "flash", compile: bool = True,
                 fullgraph: bool = True, host: str = "") -> None:  # fmt: skip
        self.rank, self.host, self.attention = rank, host or f"node{rank}", attention
        self.compile, self.fullgraph, self._chosen = compile, fullgraph, chosen

    def resolve(self) -> str:
        """The attention backend that runs on this rank."""
        return self._chosen


# rank 0 and rank 1 of each case; whether they have to be refused; the hint where that goes wrong
_CASES: tuple[tuple[str, dict[str, Any], bool, str], ...] = (
    ("ranks that are alike", {}, False,
     "ranks may differ in what only says who they are (rank, host): compare what changes graphs and kernels"),
    ("compile off on rank 1", {"compile": False}, True, "one rank that does not compile runs another program"),
    ("fullgraph off on rank 1", {"fullgraph": False}, True, "fullgraph changes what a break does: compare it, too"),
    ("'auto' is paged on rank 1", {"chosen": "paged"}, True,
     "both ranks asked for 'auto': compare what it became, config.resolve()"),
)  # fmt: skip


def judge_parity(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The attempt's settings refuse every case that has to be refused, and no other."""
    seen = on_ranks(
        ranks, _compare, attempt, hint="it is called as my_settings(config) and returns a dict", only=0
    )[0]
    if isinstance(seen, str):
        raise Mistake(f"it returns a {seen}", "return a dict: setting by name, as assert_parity takes it")
    for (what, _, refuse, hint), (refused, said) in zip(_CASES, seen, strict=True):
        finding = f"{what}: {'refused, ' + said if refused else 'let through'}"
        if refused != refuse:
            raise Mistake(finding, hint)
        say(finding)


def _compare(attempt: Attempt) -> Any:
    found = []
    for _, other, _, _ in _CASES:
        configs = [Config(0), Config(1, **other)]
        mine = [attempt(config) for config in configs]
        if not isinstance(mine[0], dict):
            return type(mine[0]).__name__
        ends = rehearse(2, lambda exchange: assert_parity(exchange, mine[exchange.rank]))  # noqa: B023
        refused = isinstance(ends[0], ParityError)
        found.append((refused, str(ends[0]).splitlines()[-1].strip() if refused else ""))
    return found


def generate(step: Callable[[str], None], x: Any, steps: int, recompute: bool) -> Any:
    """What is to be planned: an optional recompute, then `steps` calls of the generator."""
    if recompute:
        step("recompute")
        dist.all_reduce(x)
    for _ in range(steps):
        step("generate")
        dist.all_reduce(x)
        x = x / dist.get_world_size()
    return x


_SIZES = ((2, False), (3, True), (0, True))


def judge_plan(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The plan is kept by a right run, names shape and phase, and refuses a rank that has either otherwise."""
    hint = "it is called as my_plan(x, steps, recompute) and returns labkit.contract.Plan.of(...)"
    for steps, recompute in _SIZES:
        kept, same = on_ranks(ranks, _run_plan, attempt, steps, recompute, hint=hint)[0]
        finding = f"steps={steps}, recompute={recompute}: {kept or 'kept'}"
        if kept.startswith("no Plan"):
            raise Mistake(kept, hint)
        if kept:
            raise Mistake(finding, "name every call in the order in which it is made, as `step` names it")
        for what, refused in same.items():
            if not refused:
                hints = {
                    "another shape": "tensors={'x': x} puts shape and dtype into the plan",
                    "another phase": "phases={...}: what is optional is said, even where it changes no count",
                }
                raise Mistake(f"{finding}; a rank with {what} is let through", hints[what])
        say(f"{finding}; {' and '.join(same)} refused")


def _run_plan(attempt: Attempt, steps: int, recompute: bool) -> tuple[str, dict[str, bool]]:
    x = torch.ones(2, 4)
    plan = attempt(x, steps, recompute)
    if not isinstance(plan, Plan):
        return f"no Plan, but a {type(plan).__name__}", {}
    made: list[str] = []
    generate(made.append, x, steps, recompute)
    kept = "" if tuple(made) == plan.calls else f"made are {made}, planned were {list(plan.calls)}"
    others = {
        "another shape": attempt(torch.ones(4, 2), steps, recompute),
        "another phase": attempt(x, steps + (1 if recompute else -1), not recompute),  # as many calls in all
    }
    refused = {}
    for what, other in others.items():
        plans = [plan, other]
        ends = rehearse(2, lambda exchange: agree(exchange, plans[exchange.rank]))  # noqa: B023
        refused[what] = isinstance(ends[0], PlanError) and (
            what != "another phase" or "phase" in str(ends[0])
        )
    return kept, refused


def judge_repair(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The same collectives on every rank whatever its shard holds, in one graph, with the numbers that were meant."""
    hint = "it is called as my_program(x) with this rank's shard, and returns a tensor"
    for signs in ((1, 1), (1, -1), (-1, -1)):
        seen = list(on_ranks(ranks, _run_repair, attempt, signs, hint=hint))
        counts = [found["collectives"] for found in seen]
        finding = f"shards of sign {signs}: collectives by rank {counts}, numbers {seen[0]['value']}"
        if any(found["value"] is None for found in seen):
            raise Mistake("it returns None", "return the tensor")
        if any(found["graphs"] != 1 or found["breaks"] for found in seen):
            raise Mistake(
                f"{finding}; graphs {seen[0]['graphs']}, breaks {seen[0]['breaks']}",
                "an `if` on a tensor's values breaks the graph: let the ranks choose between two tensors, torch.where",
            )
        if any(abs(found["value"] - found["right"]) > 1e-5 for found in seen):
            raise Mistake(
                f"{finding}, meant are {seen[0]['right']}",
                "decide by the sum over all ranks, which is the same everywhere: add where it is positive",
            )
        say(finding)


def _run_repair(attempt: Attempt, signs: tuple[int, int]) -> dict[str, Any]:
    x = torch.ones(4) * signs[min(here().rank, 1)] * (1 + here().rank)
    total = x.clone()
    dist.all_reduce(total)
    right = total if total.sum() > 0 else torch.zeros(4)
    dynamo_reset()
    run = torch.compile(own_reduce(attempt), backend="eager")
    with torch.no_grad(), record() as rec, rec.forward():
        y = run(x.clone())
        value = None if y is None else float(y.sum())
    counts = rec.counts().iloc[0]
    found = {name: int(counts[name]) for name in ("collectives", "graphs", "breaks")}
    return {"value": value, "right": float(right.sum()), **found}


PARITY = Exercise(
    "symmetry.parity",
    "what to compare at start-up",
    "easy",
    5,
    ("ranks that are alike pass", "compile, fullgraph and the attention backend in effect are compared"),
    judge_parity,
)
PLAN = Exercise(
    "symmetry.plan",
    "the plan of a call",
    "medium",
    10,
    ("every call named in its order", "another shape and another phase are refused before the call"),
    judge_plan,
)
REPAIR = Exercise(
    "symmetry.repair",
    "a branch that no rank takes alone",
    "medium",
    10,
    (
        "1 graph and 0 breaks",
        "the same number of collectives on every rank",
        "the right numbers for any shards",
    ),
    judge_repair,
)
