"""Exercises of lesson 08: two hung runs read from their flight records, and a branch that no rank takes alone."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course.shared.harness import own_reduce
from labkit import files
from labkit.ranks import Ranks, here
from labkit.records import record
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too
from labkit.torch_compat import dynamo_reset

__all__ = ["JOB", "dumps", "line_of", "repair"]

JOB = files.ours("data/captured/symmetry/train.py.txt")
ASKED = 'return {"a": {"rank": ..., "collective": ..., "line": ...}, "b": {...}}, whole numbers'
WHERE = {"a": (2, 27), "b": (1, 37)}  # the rank, and the first collective that it does not share
LED = {  # the lines that lead that rank away, and the hint where another is named
    "a": (("if loss.item() > 20 * best:", "continue"),
          "the dump tells where the rank stands; which line of the loop lets it go on alone?"),
    "b": (("loss = forward(loader.next()).square().mean()", "self.ready.acquire()", "for batch in torch.load(file):"),
          "b/log.txt has the stacks of all ranks: where does the main thread of this one wait?"),
}  # fmt: skip


def line_of(words: str) -> int:
    """The number of the line of the job that consists of these words, from 1."""
    (found,) = [i for i, line in enumerate(JOB.read_text().splitlines(), 1) if line.strip() == words]
    return found


def judge_dumps(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """For each run the rank, the first collective that it does not share, and the line that led it away."""
    (found,) = on_ranks(ranks, attempt, only=0, hint=ASKED)
    if not isinstance(found, dict) or set(found) != set(WHERE):
        raise Mistake(f"it returns {str(found)[:80]}", ASKED)
    for run, (rank, collective) in WHERE.items():
        try:
            mine = {name: operator.index(found[run][name]) for name in ("rank", "collective", "line")}
        except (TypeError, KeyError, IndexError, ValueError):
            raise Mistake(f"{run}: {str(found[run])[:80]}", ASKED) from None
        if mine["rank"] != rank:
            hint = "print name and sizes of the last entries of each rank: which one differs from the other three?"
            raise Mistake(f"{run}: rank {mine['rank']}", hint)
        if mine["collective"] != collective:
            hint = (
                "all ranks made that one: go on to the first number at which this rank has another call, or none"
                if mine["collective"] < collective
                else "there is an earlier number at which this rank has another call, or none"
            )
            raise Mistake(f"{run}: collective {mine['collective']}", hint)
        lines, hint = LED[run]
        if mine["line"] not in map(line_of, lines):
            raise Mistake(f"{run}: line {mine['line']}", hint)
        say(f"{run}: rank {rank} leaves the others at collective {collective}, by line {mine['line']}")


# the numbers of a shard, and its sign on rank 0 and on the others; rank r has r + 1 times as much. No single number,
# no largest or middle one, and no vote of the ranks decides as the sum over all does.
SHARDS = (
    ((3.0, -1.0, 1.0, 1.0), (1, 1)),
    ((3.0, -1.0, 1.0, 1.0), (1, -1)),
    ((3.0, -1.0, 1.0, 1.0), (-1, -1)),
    ((-1.0, 6.0, -1.0, -1.0), (-1, 1)),
    ((3.0, -1.0, -1.0, -1.0), (1, 1)),  # the sum is zero: not positive
)


@on_three_too
def judge_repair(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The same collectives on every rank whatever its shard holds, in one graph, with the numbers that were meant."""
    hint = "it is called as my_program(x) with this rank's shard, and returns a tensor"
    for numbers, signs in SHARDS:
        seen = on_ranks(ranks, _run_repair, attempt, numbers, signs, hint=hint)
        counts = [found["collectives"] for found in seen]
        finding = (
            f"shards {numbers} of sign {signs}: collectives by rank {counts}, numbers {seen[0]['value']}"
        )
        if any(found["value"] is None for found in seen):
            raise Mistake("it returns None", "return the tensor")
        if any(found["graphs"] != 1 or found["breaks"] for found in seen):
            raise Mistake(
                f"{finding}; graphs {seen[0]['graphs']}, breaks {seen[0]['breaks']}",
                "an `if` on a tensor's values breaks the graph: let the ranks choose between two tensors, torch.where",
            )
        if not all(found["close"] for found in seen):
            raise Mistake(
                f"{finding}, meant are {seen[0]['right']}",
                "decide by the sum over all ranks, which is the same everywhere: add where it is positive",
            )
        say(finding)


def _run_repair(attempt: Attempt, numbers: tuple[float, ...], signs: tuple[int, int]) -> dict[str, Any]:
    x = torch.tensor(numbers) * signs[min(here().rank, 1)] * (1 + here().rank)
    total = x.clone()
    dist.all_reduce(total)
    right = total if total.sum() > 0 else torch.zeros(4)
    dynamo_reset()
    run = torch.compile(own_reduce(attempt), backend="eager")
    with torch.no_grad(), record() as rec, rec.forward():
        y = run(x.clone())
        value = None if y is None else y.tolist()
        close = value is not None and y.shape == right.shape and bool(torch.allclose(y, right, atol=1e-5))
    counts = rec.counts.iloc[0]
    found = {name: int(counts[name]) for name in ("collectives", "graphs", "breaks")}
    return {"value": value, "right": right.tolist(), "close": close, **found}


dumps = Exercise(
    "symmetry.dumps",
    "which rank left, at which collective, by which line",
    "medium",
    15,
    (
        "for each run the rank",
        "the number of the first collective that it does not share",
        "the line that led it away",
    ),
    judge_dumps,
)
repair = Exercise(
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
