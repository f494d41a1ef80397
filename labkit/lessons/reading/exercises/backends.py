"""Lesson 03, `reading.waits` and `reading.differ`: backends that read Dynamo's graph, and refuse some."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol

from labkit.lessons.shared.variants import own
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset

__all__ = ["DIFFER", "WAITS"]

c10d = torch.ops._c10d_functional
HINT = "torch.compile calls it as my_backend(gm, example_inputs) and runs what it returns: return gm.forward, or raise"


def all_reduced(x: Any, rank: int) -> Any:
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def _gather(x: Any, rank: int) -> Any:
    return c10d.all_gather_into_tensor(x, dist.get_world_size(), dist.group.WORLD.group_name)


def gathered(x: Any, rank: int) -> Any:
    return c10d.wait_tensor(_gather(x, rank)) * 2


def other_is_waited_for(x: Any, rank: int) -> Any:
    name = dist.group.WORLD.group_name
    first, second = c10d.all_reduce(x, "sum", name), c10d.all_reduce(x * 2, "sum", name)
    return c10d.wait_tensor(first) + second


def waited_for_too_late(x: Any, rank: int) -> Any:
    y = c10d.all_reduce(x, "sum", dist.group.WORLD.group_name)
    z = y * 2
    return z + c10d.wait_tensor(y)


def returned_without_wait(x: Any, rank: int) -> Any:
    return c10d.all_reduce(x, "sum", dist.group.WORLD.group_name)


def gathered_without_wait(x: Any, rank: int) -> Any:
    return _gather(x, rank) * 2


def other_constant(x: Any, rank: int) -> Any:
    return ((x + 1).relu() * (2 if rank else 3)).sin()


def one_more(x: Any, rank: int) -> Any:
    y = (x + 1).relu()
    return y.tanh().sin() if rank else y.sin()


# a program, and the hint for a backend that lets it through; one without a hint has to run
UNWAITED: dict[Callable[..., Any], str] = {
    all_reduced: "",
    gathered: "",
    other_is_waited_for: "the wait in this graph is for another collective: look at each collective's own users",
    waited_for_too_late: "one user is a wait and another is not: every user has to be a wait",
    gathered_without_wait: "all_reduce is not the only collective: look for the namespace, _c10d_functional",
    returned_without_wait: "the output is a user, too: the caller gets a tensor that may not have arrived",
}
UNEVEN: dict[Callable[..., Any], str] = {
    all_reduced: "",
    other_constant: "the same operations with another constant: compare the arguments of the nodes as well",
    one_more: "one rank has a node more: compare the whole lists of all ranks",
}


def _waits(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Graphs in which a result is used before its wait are refused, and all others run."""
    for program, hint in UNWAITED.items():
        _judge(attempt, ranks, program, hint)
        say(f"{program.__name__}: {'refused' if hint else 'runs'}")


def _differ(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Graphs that differ between ranks are refused on every rank, with the first node that differs."""
    for program, hint in UNEVEN.items():
        seen = _judge(attempt, ranks, program, hint)
        differ = [nodes for nodes in zip_longest(*(found["nodes"] for found in seen)) if len(set(nodes)) > 1]
        if not hint:
            say(f"{program.__name__}: runs")
            continue
        names = {node.split()[0].strip("%") for node in differ[0] if node}
        for rank, found in enumerate(seen):
            if not names & set(re.findall(r"\w+", found["refused"])):
                raise Mistake(
                    f"{program.__name__}: rank {rank} refused with {found['refused'][:90]!r}",
                    f"name the first node that differs: here {' or '.join(sorted(names))}",
                )
        say(f"{program.__name__}: refused at {' or '.join(sorted(names))}")


def _judge(attempt: Attempt, ranks: Ranks, program: Callable[..., Any], hint: str) -> list[dict[str, Any]]:
    """Compile a program on all ranks: with a hint it has to be refused on each, without one it has to run."""
    seen = list(on_ranks(ranks, _compile, attempt, program, bool(hint), hint=HINT))
    refused, name = [found["refused"] for found in seen], program.__name__
    if not hint and any(refused):
        raise Mistake(
            f"{name}: refused with {max(refused)[:90]!r}",
            "this one is right on every rank: refuse only what is wrong",
        )
    if not hint and any(found["wrong"] for found in seen):
        raise Mistake(f"{name}: the result is not that of the plain call", HINT)
    if hint and not all(refused):
        if any(refused):
            hint = "the rank that goes on would wait for ever in its next collective: raise on every rank"
        raise Mistake(f"{name}: let through on rank {refused.index('')}", hint)
    return seen


class _LetThrough(Exception):
    """Raised instead of running a graph that had to be refused."""


def _compile(attempt: Attempt, program: Callable[..., Any], unsafe: bool) -> dict[str, Any]:
    """On a rank: compile a program with the attempt as its backend, which may refuse, and run it."""
    me = here()
    dynamo_reset()
    x = torch.arange(1.0, 5.0, device=me.device) + me.rank
    nodes: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nodes.extend(node.format_node() or "output" for node in gm.graph.nodes)
        run = attempt(gm, inputs)
        if not callable(run):
            raise TypeError(f"the backend returns {type(run).__name__}")
        if unsafe:
            raise _LetThrough
        return run

    refused, wrong = "", False
    try:
        y = torch.compile(own(program), backend=backend, fullgraph=True)(x, me.rank)
        wrong = not isinstance(y, torch.Tensor) or not torch.equal(y, program(x, me.rank))
    except torch._dynamo.exc.BackendCompilerFailed as failed:
        error = failed.inner_exception
        if isinstance(error, (NotImplementedError, TypeError, AttributeError, NameError)):
            raise error from None
        if not isinstance(error, _LetThrough):
            refused = str(error) or type(error).__name__
    return {"refused": refused, "wrong": wrong, "nodes": nodes}


WAITS = Exercise(
    "reading.waits",
    "a backend that refuses a result used before its wait",
    "medium",
    12,
    (
        "a graph in which anything but a wait uses a collective's result raises an error before it runs",
        "every other graph runs and gives its numbers",
    ),
    _waits,
)
DIFFER = Exercise(
    "reading.differ",
    "a backend that refuses graphs that differ between ranks",
    "hard",
    15,
    (
        "graphs that are alike on all ranks run",
        "others raise on every rank an error that names the first node that differs",
    ),
    _differ,
)
