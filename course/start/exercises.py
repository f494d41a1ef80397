"""Lesson 00: the first collective of the reader's own, and a layer that each rank compiles to the same graph."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks import Ranks, here
from labkit.records import record
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset

__all__ = ["largest", "one_graph"]

MORE = 3  # with two ranks, sum and maximum of the ranks' numbers are the same
LATE_S = 0.1
ROOTED = ("reduce", "gather")  # gloo leaves partial results on the other ranks, which may be right by chance


def judge_largest(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
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
    judge_largest,
)


def judge_one_graph(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Compiled on every rank to one graph, the same one, with the result of the whole layer in one process."""
    hint = "it is called as one_graph(x, w) with this rank's parts, and returns a tensor of the layer's shape"
    seen = on_ranks(ranks, _compile, attempt, hint=hint)
    if kinds := [found["kind"] for found in seen if found["kind"]]:
        raise Mistake(f"it returns {kinds[0]}", hint)
    values = {found["value"] for found in seen}
    if values != {"whole"}:
        (wrong, *_) = values - {"whole"}
        raise Mistake(f"one process returns something else: {_WRONG[wrong][0]}", _WRONG[wrong][1])
    graphs = [found["graphs"] for found in seen]
    text = f"graphs on rank {', '.join(f'{rank}: {len(of)}' for rank, of in enumerate(graphs))}"
    counts = {len(of) for of in graphs}
    if counts != {1}:
        why = next((f" ({found['why']})" for found in seen if found["why"]), "")
        if counts == {0}:
            raise Mistake(
                text,
                "Dynamo saw nothing of it: torch.compiler.disable hides a function, and this one has to be compiled",
            )
        if len(counts) == 1:
            raise Mistake(
                text + why,
                "the ranks are alike now, and each breaks: nothing that breaks may stand between two operators",
            )
        raise Mistake(
            text + why,
            "only some ranks break: look for what they alone run between two operators, and move it",
        )
    if any(of != graphs[0] for of in graphs):
        raise Mistake(
            f"{text}, with other operators in them",
            "the graphs have to be the same: let no operator hang on the rank",
        )
    say(f"{text}, the same one; the result is one process's")


_WRONG = {
    "part": ("it is this rank's part of the sum", "the partial sums are not added up: all_reduce is missing"),
    "early": (
        "relu came before the sum",
        "relu of each part, added up, is not relu of the sum: all_reduce first",
    ),
    "sum": ("there are values below zero", "the sum is right, and relu is missing"),
    "other": ("the numbers differ", "the layer is relu of the sum over ranks of x @ w"),
}


def _compile(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the graphs that Dynamo makes of an attempt, and which value it returns."""
    rank, size, device = here().rank, here().world_size, here().device
    random = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=random) for shape in ((5, 3 * size), (3 * size, 4)))
    columns, rows = x.chunk(size, 1), w.chunk(size, 0)
    parts = [a @ b for a, b in zip(columns, rows, strict=True)]
    values = {
        "whole": torch.relu(x @ w),
        "sum": x @ w,
        "part": torch.relu(parts[rank]),
        "early": sum((torch.relu(part) for part in parts), torch.zeros(5, 4)),
    }
    graphs: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    dynamo_reset()
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()
    y = torch.compile(attempt, backend=keep)(columns[rank].contiguous().to(device), rows[rank].to(device))
    kind = "" if isinstance(y, torch.Tensor) else type(y).__name__
    if not kind and y.shape != (5, 4):
        kind = f"a tensor of shape {tuple(y.shape)}, not (5, 4)"
    close = (
        () if kind else (name for name, value in values.items() if torch.allclose(y.cpu(), value, 1e-4, 1e-5))
    )
    return {
        "kind": kind,
        "value": next(iter(close), "other"),
        "graphs": graphs,
        "why": next(iter(breaks), "").strip().partition("\n")[0],
    }


one_graph = Exercise(
    "start.one_graph",
    "one graph on every rank",
    "easy",
    4,
    ("one graph on every rank, the same one", "the result of one process"),
    judge_one_graph,
)
