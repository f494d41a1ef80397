"""Lesson 00: the first collective of the reader's own, and a compiled layer without a break that keeps its message."""

from __future__ import annotations

import contextlib
import functools
import io
import numbers
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from oddrank.record import record

from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too
from labkit.torch_compat import break_reasons, dynamo_reset, patched

__all__ = ["largest", "one_graph"]

LATE_S = 0.1
ROOTED = ("reduce", "gather")  # gloo leaves partial results on the other ranks, which may be right by chance
MESSAGE = "hello from rank 0"
CALLS = 2  # the second call finds what the first did to its inputs
# which value the compiled function returns instead, and the hint for it
WRONG = {
    "part": ("it is this rank's part of the sum", "the partial sums are not added up: all_reduce is missing"),
    "early": (
        "relu came before the sum",
        "relu of each part, added up, is not relu of the sum: all_reduce first",
    ),
    "sum": ("there are values below zero", "the sum is right, and relu is missing"),
    "other": ("the numbers differ", "the layer is relu of the sum over ranks of x @ w"),
}
LARGEST_HINT = "it is called as largest(value, device) and returns a number"


@on_three_too
def judge_largest(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The largest of the ranks' values on every rank, wherever it is."""
    for shift in range(len(ranks)):
        _judge_values(ranks, _values(len(ranks), shift), attempt)
    say(f"the largest of {_listed(_values(len(ranks), 0))} on every rank, whichever rank has it")


def _values(ranks: int, shift: int) -> list[float]:
    """A value per rank, negative ones too; the shift moves the largest to another rank."""
    return [4.0 * ((rank + shift) % ranks) - 10.5 for rank in range(ranks)]


def _listed(values: list[Any]) -> str:
    return ", ".join(map(str, values))


def _judge_values(ranks: Ranks, given: list[float], attempt: Attempt) -> None:
    seen = on_ranks(ranks, _look, attempt, given, ranks.device, hint=LARGEST_HINT, timeout=30)
    text = f"given {_listed(given)}, the ranks return {_listed([found['said'] for found in seen])}"
    strange = next((found["type"] for found in seen if found["value"] is None), "")
    if strange == "Tensor":
        raise Mistake(text, "it returns a tensor: .item() makes it a number")
    if strange:
        raise Mistake(text, "every rank has to return a number: say what you want back with return")
    if all(found["collectives"] == 0 for found in seen):
        raise Mistake(
            f"{text}, and no collective ran",
            "a rank knows its own value only: let them tell each other, in a collective",
        )
    if any(found["rooted"] for found in seen):
        raise Mistake(
            text,
            "this collective promises its result to one rank, and the others hold leftovers: take one whose name "
            "begins with all_",
        )
    values = [found["value"] for found in seen]
    if set(values) == {max(given)}:
        return
    if len(set(values)) > 1:
        raise Mistake(
            text,
            "the ranks return different numbers: with async_op=True a collective is under way until wait() of the Work "
            "that it returns",
        )
    if values[0] == sum(given):
        raise Mistake(text, "that is their sum: all_reduce adds up unless it is given an op")
    raise Mistake(text, f"the largest of {_listed(given)} is {max(given)}")


def _look(attempt: Attempt, given: list[float], device: str) -> dict[str, Any]:
    """On a rank: what the attempt returned, and which collectives ran.

    The last rank comes late, so that no other one has its value before the collective has ended.
    """
    dist.barrier()
    if here().rank == here().world_size - 1:
        time.sleep(LATE_S)
    with record() as rec:
        found = attempt(given[here().rank], device)
    called = {one.name for one in rec.collectives}
    number = isinstance(found, numbers.Real) and not isinstance(found, bool)
    return {
        "said": f"{found!r:.40}",
        "type": type(found).__name__,
        "value": float(found) if number else None,  # type: ignore[arg-type]
        "collectives": int(rec.counts[0].collectives or 0),
        "rooted": not called.isdisjoint(ROOTED),
    }


largest = Exercise(
    "start.largest",
    "the largest value",
    "easy",
    2,
    ("every rank returns the largest of the ranks' values, as a number", "on any number of ranks"),
    judge_largest,
)


@on_three_too
def judge_one_graph(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """One graph and no break on every rank, the same graph, the message of rank 0, and the result of one process."""
    hint = "it is called as one_graph(compile) and returns a function of this rank's x and w, which returns a tensor"
    seen = on_ranks(ranks, _compile, attempt, hint=hint)
    if kinds := [found["kind"] for found in seen if found["kind"]]:
        raise Mistake(f"it returns {kinds[0]}", hint)
    values = {found["value"] for found in seen}
    if values != {"whole"}:
        (wrong, *_) = values - {"whole"}
        raise Mistake(f"one process returns something else: {WRONG[wrong][0]}", WRONG[wrong][1])
    graphs = [found["graphs"] for found in seen]
    breaks = [found["breaks"] for found in seen]
    text = "; ".join(
        f"rank {rank}: graphs {len(of)}, breaks {broken}"
        for rank, (of, broken) in enumerate(zip(graphs, breaks, strict=True))
    )
    why = next((f" ({found['why']})" for found in seen if found["why"]), "")
    if not all(graphs):
        raise Mistake(
            text + why,
            "a rank has no graph: compile with the given compile(...), call what it returns, and let nothing hide the "
            "layer (torch.compiler.disable, or a function that Dynamo skips)",
        )
    if any(breaks) or any(len(of) > 1 for of in graphs):
        alike = len(set(breaks)) == 1
        raise Mistake(
            text + why,
            "the ranks are alike, and each breaks: the compiled function still has what Dynamo cannot trace"
            if alike
            else "only some ranks break: look for what they alone run in the compiled function; at its start or end it "
            "is a break, too",
        )
    if any(of != graphs[0] for of in graphs):
        raise Mistake(
            f"{text}; other operators in them",
            "the graphs have to be the same: let no operator depend on the rank",
        )
    messages = [found["messages"] for found in seen]
    if messages != [CALLS] + [0] * (len(ranks) - 1):
        raise Mistake(
            f"in {CALLS} calls the ranks print the message {_listed(messages)} times",
            "rank 0, and no other rank, prints the message at each call: the caller of the compiled function can do "
            "that, and torch._dynamo.config.reorderable_logging_functions is another way",
        )
    say(f"{text}, the same graph; one message a call; the result of one process")


def _compile(attempt: Attempt) -> dict[str, Any]:
    """On a rank: graphs, breaks and messages of the function that an attempt makes, and which value it returns."""
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
    before = break_reasons()
    mine = columns[rank].contiguous().to(device), rows[rank].clone().to(device)
    printed = io.StringIO()
    # an attempt may set it, and the next attempt must not find it set
    with patched("dynamo.config", reorderable_logging_functions=set()), contextlib.redirect_stdout(printed):
        run = attempt(functools.partial(torch.compile, backend=keep))
        if not callable(run):
            return {"kind": f"{type(run).__name__}, not a function"}
        for _ in range(CALLS):
            y = run(*mine)
    breaks = Counter(break_reasons())
    breaks.subtract(before)
    dynamo_reset()
    kind = "" if isinstance(y, torch.Tensor) else f"{type(y).__name__} from the function"
    if not kind and y.shape != (5, 4):
        kind = f"a tensor of shape {tuple(y.shape)}, not (5, 4)"
    close = (
        () if kind else (name for name, value in values.items() if torch.allclose(y.cpu(), value, 1e-4, 1e-5))
    )
    return {
        "kind": kind,
        "value": next(iter(close), "other"),
        "graphs": graphs,
        "breaks": sum(breaks.values()),
        "why": next(iter(+breaks), "").strip().partition("\n")[0],
        "messages": printed.getvalue().splitlines().count(MESSAGE),
    }


one_graph = Exercise(
    "start.one_graph",
    "one graph on every rank, and the message",
    "easy",
    4,
    (
        "one graph and no break on every rank, the same graph",
        "rank 0 prints `hello from rank 0` once a call",
        "the result of one process",
    ),
    judge_one_graph,
)
