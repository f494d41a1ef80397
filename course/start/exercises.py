"""Lesson 00: the first collective of the reader's own, and a compiled layer without a break that keeps its message."""

from __future__ import annotations

import contextlib
import functools
import io
import numbers
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from oddrank.record import record

from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too
from labkit.torch_compat import break_reasons, dynamo_reset, patched

__all__ = ["largest", "one_graph"]

LATE_S = 0.1
MESSAGE = "hello from rank 0"
SHAPE = (5, 4)
ROOTED = {"reduce", "gather"}
CALLS = 0, 1, 0  # which inputs; the last call finds what the first one did to them
RETURNS_NUMBER = "it is called as largest(value, device) and returns a number"
RETURNS_FUNCTION = (
    "it is called as one_graph(compile) and returns a function of this rank's x and w, which returns a tensor"
)


@on_three_too
def judge_largest(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The largest of the ranks' values on every rank, wherever it is."""
    n = len(ranks)
    for shift in range(n):  # the shift moves the largest to another rank
        # negative, and with a fraction that float32 has and half precision has not
        given = [4.0 * ((rank + shift) % n) - 1000.25 for rank in range(n)]
        seen = on_ranks(ranks, _call, attempt, given, ranks.device, hint=RETURNS_NUMBER, timeout=30)
        said = f"given {_listed(given)}, the ranks return {_listed([one['said'] for one in seen])}"
        if hint := next((hint for wrong, hint in _wrong_values(seen, given) if wrong), ""):
            raise Mistake(said, hint)
    say(f"the largest of {_listed(given)} on every rank, whichever rank has it")


def _wrong_values(seen: list[dict[str, Any]], given: list[float]) -> Iterator[tuple[bool, str]]:
    """What may be wrong, and the hint for it, in the order in which it matters."""
    values, types = [one["value"] for one in seen], [one["type"] for one in seen]
    yield None in values and "Tensor" in types, "it returns a tensor: .item() makes it a number"
    yield None in values, "every rank has to return a number: say what you want back with return"
    alone = not any(one["collectives"] for one in seen)
    yield (
        alone,
        "no collective ran. A rank knows its own value only: let them tell each other, in a collective",
    )
    ran = set().union(*(one["collectives"] for one in seen))
    # gloo leaves partial results on the other ranks, which may be right by chance
    rooted = ran <= ROOTED or (ran & ROOTED and len(set(values)) > 1)
    yield (
        bool(rooted),
        "a reduce or gather promises its result to one rank, and the others hold leftovers: take a collective whose "
        "name begins with all_, or send the result on",
    )
    yield (
        len(set(values)) > 1,
        "the ranks return different numbers: with async_op=True a collective is under way until wait() of the Work "
        "that it returns",
    )
    yield values[0] == sum(given), "that is their sum: all_reduce adds up unless it is given an op"
    most = max(given)
    yield 0 < abs(values[0] - most) < 1, "it was rounded on its way: look at its type and dtype"
    yield values[0] != most, f"the largest of {_listed(given)} is {most}"


def _call(attempt: Attempt, given: list[float], device: str) -> dict[str, Any]:
    """On a rank: what the attempt returned, and which collectives ran.

    The last rank comes late, so that no other one has its value before the collective has ended.
    """
    dist.barrier()
    if here().rank == here().world_size - 1:
        time.sleep(LATE_S)
    with record() as rec:
        found = attempt(given[here().rank], device)
    number = isinstance(found, numbers.Real) and not isinstance(found, bool)
    return {
        "said": f"{found!r:.40}",
        "type": type(found).__name__,
        "value": float(found) if number else None,  # type: ignore[arg-type]
        "collectives": {one.name for one in rec.collectives},
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
    seen = on_ranks(ranks, _compile, attempt, hint=RETURNS_FUNCTION)
    for saw, hint in _wrong_graphs(seen):
        if saw:
            raise Mistake(saw, hint)
    say(f"{_counted(seen)}, the same graph; one message a call; the result of one process")


def _wrong_graphs(seen: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What was seen where something is wrong ('' where it is not), and the hint, in the order in which it matters."""
    kind = next((one["kind"] for one in seen if one["kind"]), "")
    yield kind and f"it returns {kind}", RETURNS_FUNCTION
    value = next((one["value"] for one in seen if one["value"] != "right"), "")
    yield value and "one process returns something else", value
    graphs, breaks = [one["graphs"] for one in seen], [one["breaks"] for one in seen]
    counted = _counted(seen) + next((f" ({one['why']})" for one in seen if one["why"]), "")
    yield (
        "" if all(graphs) else counted,
        "a rank has no graph: compile with the given compile(...), call what it returns, and let nothing hide the "
        "layer (torch.compiler.disable, or a function that Dynamo skips)",
    )
    broken = counted if any(breaks) or any(len(of) > 1 for of in graphs) else ""
    alike = len(set(breaks)) == 1
    yield (
        broken if alike else "",
        "the ranks are alike, and each breaks: the compiled function still has what Dynamo cannot trace",
    )
    yield (
        broken,
        "only some ranks break: look for what they alone run in the compiled function; at its start or end it is a "
        "break, too",
    )
    yield (
        "" if all(one["whole"] for one in seen) else f"{counted}, which do not make the layer of x and w",
        "only a part of the layer is compiled: the matmul, the all_reduce and relu have to be in the one graph",
    )
    yield (
        f"{counted}; other operators in them" if any(of != graphs[0] for of in graphs) else "",
        "the graphs have to be the same: let no operator depend on the rank",
    )
    messages = [one["messages"] for one in seen]
    once_a_call = messages == [len(CALLS)] + [0] * (len(seen) - 1)
    yield (
        "" if once_a_call else f"in {len(CALLS)} calls the ranks print the message {_listed(messages)} times",
        "rank 0, and no other rank, prints the message at each call. Who else could print it?",
    )


def _compile(attempt: Attempt) -> dict[str, Any]:
    """On a rank: graphs, breaks and messages of an attempt's function, and what is wrong with its values."""
    rank, size, device = here().rank, here().world_size, here().device
    random = torch.Generator().manual_seed(0)
    mine, parts = [], []
    for _ in range(2):  # neither 2 nor 3 divides 7
        x, w = torch.randn(5, 7, generator=random), torch.randn(7, 4, generator=random)
        columns, rows = x.tensor_split(size, 1), w.tensor_split(size, 0)
        mine.append((columns[rank].contiguous().to(device), rows[rank].clone().to(device)))
        parts.append([a @ b for a, b in zip(columns, rows, strict=True)])
    graphs: list[str] = []
    whole = 0  # runs of a graph that takes this rank's x and w, and returns the layer's result

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph.code)

        def forward(*given: Any) -> Any:
            nonlocal whole
            found = graph.forward(*given)
            whole += _places(mine[call]) <= _places(given) and any(
                _value(y.cpu(), parts[call], rank) == "right" for y in found if _fits(y)
            )
            return found

        return forward

    dynamo_reset()
    before, kind, value = break_reasons(), "", "right"
    printed = io.StringIO()
    # an attempt may set it, and the next attempt must not find it set
    with patched("dynamo.config", reorderable_logging_functions=set()), contextlib.redirect_stdout(printed):
        run = attempt(functools.partial(torch.compile, backend=keep))
        if not callable(run):
            return {"kind": f"{type(run).__name__}, not a function"}
        for call in CALLS:
            y = run(*mine[call])
            kind = kind or _kind(y)
            if not kind and value == "right":
                value = _value(y.cpu(), parts[call], rank)
    breaks = Counter(break_reasons())
    breaks.subtract(before)
    dynamo_reset()
    return {
        "kind": kind,
        "value": value,
        "graphs": graphs,
        "whole": whole == len(CALLS),
        "breaks": sum(breaks.values()),
        "why": next(iter(+breaks), "").strip().partition("\n")[0],
        "messages": printed.getvalue().splitlines().count(MESSAGE),
    }


def _places(tensors: Sequence[Any]) -> set[int]:
    """Where tensors keep their numbers: a view of x is x."""
    return {one.untyped_storage().data_ptr() for one in tensors if isinstance(one, torch.Tensor)}


def _fits(y: Any) -> bool:
    return isinstance(y, torch.Tensor) and y.shape == SHAPE


def _kind(y: Any) -> str:
    if not isinstance(y, torch.Tensor):
        return f"{type(y).__name__} from the function"
    return "" if _fits(y) else f"a tensor of shape {tuple(y.shape)}, not {SHAPE}"


def _value(y: torch.Tensor, parts: list[torch.Tensor], rank: int) -> str:
    """'right' where it is what one process returns, else the hint for the value that it is."""
    whole = sum(parts, torch.zeros(SHAPE))
    apart = torch.stack([torch.relu(part) for part in parts]).sum(0)
    known = {
        "right": torch.relu(whole),
        "the partial sums are not added up: all_reduce is missing": torch.relu(parts[rank]),
        "relu of each part, added up, is not relu of the sum: all_reduce first": apart,
        "the sum is right, and relu is missing": whole,
    }
    other = "the layer is relu of the sum over ranks of x @ w"
    return next((said for said, value in known.items() if torch.allclose(y, value, 1e-4, 1e-5)), other)


def _counted(seen: list[dict[str, Any]]) -> str:
    counts = (
        f"rank {rank}: graphs {len(one['graphs'])}, breaks {one['breaks']}" for rank, one in enumerate(seen)
    )
    return "; ".join(counts)


def _listed(values: list[Any]) -> str:
    return ", ".join(map(str, values))


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
