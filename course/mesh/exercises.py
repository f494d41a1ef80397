"""Lesson 11: a backend that refuses graphs of another group, and what went wrong in four jobs on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from course.shared.jobs import hint_by_cause, judge_jobs
from labkit import files
from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset, funcol, functional_op

__all__ = ["JOBS", "fence", "jobs"]

JOBS = files.ours("data/captured/mesh_jobs.log")
all_reduce, wait_tensor = functional_op("all_reduce"), functional_op("wait_tensor")
HINT = "my_fence(group) returns a backend: a function of a graph and its inputs, which returns a function"


# --- a backend that refuses another group ---


def _reduce(x: Any, group: Any) -> Any:
    return x + funcol.all_reduce(x, "sum", group)


def _in_place(x: Any, group: Any) -> Any:
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y


def _gather(x: Any, group: Any) -> Any:
    return funcol.all_gather_tensor(x, 0, group)


def _scatter(x: Any, group: Any) -> Any:
    return funcol.reduce_scatter_tensor(x, "sum", 0, group)


def _exchange(x: Any, group: Any) -> Any:
    return funcol.all_to_all_single(x, None, None, group)


def _root(x: Any, group: Any) -> Any:
    return funcol.broadcast(x, 0, group)


def _checkpointed(x: Any, group: Any) -> Any:
    return checkpoint(lambda x: _reduce(x, group).sin(), x, use_reentrant=False)


def _by_keyword(x: Any, group: Any) -> Any:
    return wait_tensor(all_reduce(x, group_name=group.group_name, reduce_op="sum"))


def _second(x: Any, group: Any, own: Any) -> Any:
    return funcol.all_reduce(funcol.all_reduce(x, "sum", own), "sum", group)


OTHERS = (
    "other collectives have a group, too: go by `group_name` in the schema, not by the name of one of them"
)
# by what the graph has: the function, and the hint for a backend that lets it pass with another group
CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "an all_reduce": (
        _reduce,
        "the last argument of a collective's node is its group's name: compare it with `group.group_name`",
    ),
    "an all_reduce in place": (
        _in_place,
        "Dynamo writes dist.all_reduce as a functional one: look at the graph's nodes",
    ),
    "an all_gather": (_gather, OTHERS),
    "a reduce_scatter": (_scatter, OTHERS),
    "a broadcast": (_root, OTHERS),
    "an all_to_all": (_exchange, OTHERS),
    "an all_reduce in a checkpoint": (
        _checkpointed,
        "a checkpointed part is a graph inside the graph: go through `graph.modules()`",
    ),
    "an all_reduce by keyword": (
        _by_keyword,
        "arguments can stand in `node.kwargs`: read `group_name` by the names of the operator's schema",
    ),
}
BEFORE = "refuse in the backend, or before you call the graph: what has run, has sent its messages"
SAME = "a group with the same members is another one, too: compare names, not sizes or members"
SECOND = "one node of the right group does not make the graph right: look at every node"
LONGER = "compare whole names: '1' is a part of '11'"
HASHED = "a name need not be a number: a group of `new_group(use_local_synchronization=True)` has a hash"
OWN = "it is the group's own: let it pass, and return a function that computes it"


def judge_fence(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Graphs of the own group run with the numbers of eager; those with another group are refused, wherever it stands.

    All groups are such that an attempt which refuses nothing leaves no rank waiting: a rank's own, or all ranks.
    """
    seen = on_ranks(ranks, quietly, _fenced, attempt, hint=HINT)
    for rank, found in enumerate(seen):
        for finding, hint in found:
            raise Mistake(f"rank {rank}: {finding}", hint)
    say(f"{len(CASES) + 1} graphs of the own group, or without a collective: run, with the numbers of eager")
    say(
        f"{len(CASES)} kinds of collective of another group, also after one of its own; groups with a longer name, a "
        "name that is no number, the same members: refused"
    )


def _fenced(attempt: Attempt) -> list[tuple[str, str]]:
    """On a rank: what is wrong, and the hint for it, at the first mistake."""
    world: Any = dist.group.WORLD
    alone = _own_group()
    # so many more numbers that one of each rank's has the world's number, 0, in it; of two ranks one has only odd
    # numbers until the twin takes one
    more = [_own_group() for _ in range(12)]
    twin = dist.new_group()
    more += [_own_group() for _ in range(12)]
    longer = [group for group in more if world.group_name in group.group_name]
    hashed = dist.new_group([dist.get_rank()], use_local_synchronization=True)  # its name is no number
    for own, others in ((alone, [world]), (world, [alone, *longer[:1], twin, hashed])):
        if found := _judged(attempt, own, others):
            return [found]
    return []


def _own_group() -> Any:
    """A group of this rank only; all ranks make them all."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def _judged(attempt: Attempt, own: Any, others: list[Any]) -> tuple[str, str] | None:
    backend = attempt(own)
    if not callable(backend):
        return f"it returned {type(backend).__name__}", HINT
    x = torch.arange(12.0).reshape(6, 2) + dist.get_rank()
    right = {what: partial(call, group=own) for what, (call, _) in CASES.items()}
    for what, call in ({"no collective": torch.sin} | right).items():
        value, error = _compiled(call, x, backend)
        if error is not None:
            return f"a graph with {what} of its own group: {error}", OWN
        if not isinstance(value, torch.Tensor) or not torch.allclose(value, call(x)):
            return f"a graph with {what} of its own group: not what eager computes", OWN
    for other in others:
        same = dist.get_process_group_ranks(own) == dist.get_process_group_ranks(other)
        longer = own.group_name in other.group_name
        by_group = ((HASHED, not other.group_name.isdigit()), (SAME, same), (LONGER, longer))
        for what, (call, hint) in CASES.items():
            ran = torch.zeros(())
            _, error = _compiled(partial(_marked, call=partial(call, group=other), ran=ran), x, backend)
            if error is None:
                return (
                    f"a graph with {what} of another group ran",
                    next((said for said, fits in by_group if fits), hint),
                )
            if ran:
                return f"a graph with {what} of another group ran before it was refused", BEFORE
        if _compiled(partial(_second, group=other, own=own), x, backend)[1] is None:
            return "a graph with an all_reduce of its own group, and one of another, ran", SECOND
    return None


def _marked(x: Any, call: Callable[..., Any], ran: Any) -> Any:
    """The call, and a number that changes where its graph runs."""
    y = call(x)
    ran.add_(1)
    return y


def _compiled(call: Callable[..., Any], x: Any, backend: Any) -> tuple[Any, str | None]:
    """The value of a compiled call, and the error that it raised."""
    dynamo_reset()
    try:
        return torch.compile(call, backend=backend, fullgraph=True)(x), None
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"


# --- four jobs ---

RIGHT = {
    "A": ({3}, "another group in the graph", 'mesh["tp"].get_group()'),
    "B": ({1, 2}, "groups in another order", "one order on all ranks"),
    "C": ({1, 2}, "input by the wrong number", 'mesh["dp"].get_local_rank()'),
    "D": ({0, 1, 2, 3}, "another size in the graph", 'mesh["dp"].size()'),
}
ALSO = {"B": ({0, 3}, {0, 1, 2, 3}), "C": ({0, 1, 2, 3},)}  # ranks that are as right
CAUSES = (*(cause for _, cause, _ in RIGHT.values()), "a rank stayed away")
CHANGES = (*(change for _, _, change in RIGHT.values()), "a longer timeout")
FORM = 'it returns {"A": ([ranks], "cause", "change"), ...}, with a line for each of the jobs A to D'
LOOK = {
    "A": "put the graphs of two ranks side by side, and look up each group's name in the first lines",
    "B": "no group has two members that differ in its own calls: which call does each rank wait in, and for whom?",
    "C": "the graphs are alike: which ranks have to have the same input?",
    "D": "no rank differs: compare each number in the graph with the groups, and the two losses of a line",
}


def judge_logs(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change."""
    hint = hint_by_cause(RIGHT, LOOK, ALSO)
    judge_jobs(attempt, ranks, say, hint, RIGHT, CAUSES, CHANGES, FORM, size=4)


fence = Exercise(
    "mesh.fence",
    "a backend that refuses another group",
    "medium",
    15,
    (
        "graphs of the given group run",
        "a graph with any collective of another group raises before it runs",
        "also inside a checkpoint",
    ),
    judge_fence,
)
jobs = Exercise(
    "mesh.jobs",
    "four jobs on a mesh",
    "medium",
    10,
    ("for each job the ranks on which something is wrong, the cause, and the change",),
    judge_logs,
)
