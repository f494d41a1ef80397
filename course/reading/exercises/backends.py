"""Lesson 03, `reading.differ`: a backend that refuses graphs that differ between ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch

from course.shared.variants import own
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset, functional_op, world_name

__all__ = ["differ"]

all_reduce, wait_tensor = functional_op("all_reduce"), functional_op("wait_tensor")
HINT = "torch.compile calls it as my_backend(gm, example_inputs) and runs what it returns: return gm.forward, or raise"


def all_reduced(x: Any, rank: int, group: str) -> Any:
    """A collective and its wait: right."""
    return wait_tensor(all_reduce(x * 2, "sum", group)) + 1


def other_constant(x: Any, rank: int, group: str) -> Any:
    """The same operations on all ranks, with a constant that differs."""
    return ((x + 1).relu() * (2 if rank else 3)).sin()


def one_more(x: Any, rank: int, group: str) -> Any:
    """One operation more on all ranks but the first."""
    y = (x + 1).relu()
    return y.tanh().sin() if rank else y.sin()


def other_size(x: Any, rank: int, group: str) -> Any:
    """The same operations on all ranks, on tensors whose size is the rank's own."""
    return wait_tensor(all_reduce(x + 3, "sum", group))


RIGHT = "this one is right on every rank: refuse only what is wrong"
# a program, and the hint for a backend that lets it through; one without a hint has to run
UNEVEN: dict[Callable[..., Any], str] = {
    all_reduced: "",
    other_constant: "the same operations with another constant: compare the arguments of the nodes as well",
    one_more: "one rank has a node more: compare the whole lists of all ranks",
    other_size: "the same nodes on tensors of another size: compare the shapes too (node.meta['example_value'].shape)",
}


def _differ(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Graphs that differ between ranks are refused on every rank, with the first node that differs."""
    found_by = {program: _judge(attempt, ranks, program, hint) for program, hint in UNEVEN.items()}
    known = {_name(node) for seen in found_by.values() for found in seen for node in found["nodes"]}
    for program, seen in found_by.items():
        rows = list(zip_longest(*(found["nodes"] for found in seen)))
        first = next((i for i, row in enumerate(rows) if len(set(row)) > 1), None)
        if first is None:  # the texts of the nodes are the same
            say(f"{program.__name__}: {'refused' if UNEVEN[program] else 'runs'}")
            continue
        names = {_name(node) for node in rows[first] if node}
        # an error may quote the arguments of that node, and its line of code, with what comes later in it
        quoted = {word for node in rows[first] if node for word in re.findall(r"\w+", node)}
        quoted |= {_name(node) for row in rows[first:] for node in row if node}
        for rank, found in enumerate(seen):
            words = set(re.findall(r"\w+", found["refused"]))
            if not names & words:
                raise Mistake(
                    f"{program.__name__}: rank {rank} refused with {found['refused'][:90]!r}",
                    f"name the first node that differs: here {' or '.join(sorted(names))}",
                )
            if more := sorted(words & known - quoted):
                raise Mistake(
                    f"{program.__name__}: the error of rank {rank} also names {', '.join(more)}",
                    "the nodes before the first that differs are alike: leave them out",
                )
        say(f"{program.__name__}: refused at {' or '.join(sorted(names))}")


def _judge(attempt: Attempt, ranks: Ranks, program: Callable[..., Any], hint: str) -> list[dict[str, Any]]:
    """Compile a program on all ranks: with a hint it has to be refused on each, without one it has to run."""
    seen = list(on_ranks(ranks, _compile, attempt, program, bool(hint), hint=HINT))
    refused, name = [found["refused"] for found in seen], program.__name__
    if not hint and any(refused):
        raise Mistake(f"{name}: refused with {max(refused)[:90]!r}", RIGHT)
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


def _name(node: str) -> str:
    return node.split()[0].strip("%")


class _LetThrough(Exception):
    """Raised instead of running a graph that had to be refused."""


def _compile(attempt: Attempt, program: Callable[..., Any], unsafe: bool) -> dict[str, Any]:
    """On a rank: compile a program with the attempt as its backend, which may refuse, and run it."""
    me = here()
    dynamo_reset()
    size = 4 + me.rank if program is other_size else 4
    x = torch.arange(1.0, 1.0 + size, device=me.device) + me.rank
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
