"""Lesson 03, `reading.waits` and `reading.differ`: backends that read Dynamo's graph, and refuse some."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from course.shared.variants import own
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset, functional_op, world_name

__all__ = ["differ", "waits"]

all_reduce, wait_tensor = functional_op("all_reduce"), functional_op("wait_tensor")
all_gather, broadcast = functional_op("all_gather_into_tensor"), functional_op("broadcast")
HINT = "torch.compile calls it as my_backend(gm, example_inputs) and runs what it returns: return gm.forward, or raise"


def all_reduced(x: Any, rank: int, group: str) -> Any:
    """A collective and its wait: right."""
    return wait_tensor(all_reduce(x * 2, "sum", group)) + 1


def gathered(x: Any, rank: int, group: str) -> Any:
    """Another collective and its wait: right."""
    return wait_tensor(all_gather(x, dist.get_world_size(), group)) * 2


def other_is_waited_for(x: Any, rank: int, group: str) -> Any:
    """Two collectives, and a wait for one of them."""
    first, second = all_reduce(x, "sum", group), all_reduce(x * 2, "sum", group)
    return wait_tensor(first) + second


def waited_for_too_late(x: Any, rank: int, group: str) -> Any:
    """A result that is used before its wait."""
    y = all_reduce(x, "sum", group)
    z = y * 2
    return z + wait_tensor(y)


def gathered_without_wait(x: Any, rank: int, group: str) -> Any:
    """Another collective than an all-reduce, without a wait."""
    return all_gather(x, dist.get_world_size(), group) * 2


def returned_without_wait(x: Any, rank: int, group: str) -> Any:
    """A result that is returned without a wait."""
    return all_reduce(x, "sum", group)


def used_by_a_method(x: Any, rank: int, group: str) -> Any:
    """A result that a method of the tensor uses before its wait: in the graph a call_method, not a call_function."""
    y = all_reduce(x, "sum", group)
    return y.mul(2) + wait_tensor(y)


def overlapped(x: Any, rank: int, group: str) -> Any:
    """Two collectives, and other work before their waits: right."""
    first, second = all_reduce(x, "sum", group), all_reduce(x * 2, "sum", group)
    z = x.sin()
    return wait_tensor(second) + z * wait_tensor(first)


def sent_to_all(x: Any, rank: int, group: str) -> Any:
    """A broadcast and its wait: right."""
    return wait_tensor(broadcast(x, 0, group)) * 2


def sent_to_all_without_wait(x: Any, rank: int, group: str) -> Any:
    """A broadcast without a wait."""
    return broadcast(x, 0, group) * 2


def other_constant(x: Any, rank: int, group: str) -> Any:
    """The same operations on all ranks, with a constant that differs."""
    return ((x + 1).relu() * (2 if rank else 3)).sin()


def one_more(x: Any, rank: int, group: str) -> Any:
    """One operation more on all ranks but the first."""
    y = (x + 1).relu()
    return y.tanh().sin() if rank else y.sin()


RIGHT = "this one is right on every rank: refuse only what is wrong"
BETWEEN = "other work between a collective and its wait is right: ask who uses the result, not which node comes next"
# a program, and the hint for a backend that lets it through; one without a hint has to run
UNWAITED: dict[Callable[..., Any], str] = {
    all_reduced: "",
    gathered: "",
    other_is_waited_for: "the wait in this graph is for another collective: look at each collective's own users",
    waited_for_too_late: "one user is a wait and another is not: every user has to be a wait",
    gathered_without_wait: "all_reduce is not the only collective: look for the namespace, _c10d_functional",
    returned_without_wait: "the output is a user, too: the caller gets a tensor that may not have arrived",
    used_by_a_method: "a method of the tensor uses it as well, and its node is a call_method: node.users has all kinds",
    overlapped: "",
    sent_to_all: "",
    sent_to_all_without_wait: "a broadcast is a collective, and begins with no all_: ask for the namespace",
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
            f"{name}: refused with {max(refused)[:90]!r}", BETWEEN if program is overlapped else RIGHT
        )
    if not hint and any(found["wrong"] for found in seen):
        raise Mistake(
            f"{name}: the result is not that of the plain call",
            "what the backend returns is called in the graph's place: gm.forward does what the graph says",
        )
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
    given = (x, me.rank, world_name())
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
        y = torch.compile(own(program), backend=backend, fullgraph=True)(*given)
        wrong = not isinstance(y, torch.Tensor) or not torch.equal(y, program(*given))
    except Exception as failed:
        error = getattr(failed, "inner_exception", failed)  # of torch's BackendCompilerFailed
        if isinstance(error, (NotImplementedError, TypeError, AttributeError, NameError)):
            raise error from None
        if not isinstance(error, _LetThrough):
            refused = str(error) or type(error).__name__
    return {"refused": refused, "wrong": wrong, "nodes": nodes}


waits = Exercise(
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
differ = Exercise(
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
