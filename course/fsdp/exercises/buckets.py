"""Lesson 14, `fsdp.bucket`: a pass that makes one all-reduce of those that do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course.shared.capture import operations
from course.shared.variants import own
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset, functional_op, world_name

__all__ = ["bucket"]

all_reduce, wait_tensor = functional_op("all_reduce"), functional_op("wait_tensor")


def summed(x: Any, group: str, how: str = "sum") -> Any:
    """An all-reduce and its wait."""
    return wait_tensor(all_reduce(x, how, group))


def three(x: Any, world: str, alone: str) -> Any:
    """Three shapes; all inputs are computed first, and all results used last."""
    a, b, c = x + 1, x[:3] * 2, x.reshape(2, 2)
    a, b, c = summed(a, world), summed(b, world), summed(c, world)
    return a, b + 1, c @ c


def dependent(x: Any, world: str, alone: str) -> Any:
    """A chain of two, and one beside it."""
    beside = x * 3
    return summed(summed(x, world) + 1, world), summed(beside, world)


def late(x: Any, world: str, alone: str) -> Any:
    """One result is used before the other's input is computed."""
    y = summed(x, world) * 2
    z = x + 1
    return y, summed(z, world)


def sum_and_max(x: Any, world: str, alone: str) -> Any:
    """Two sums and two maxima."""
    return summed(x, world), summed(x, world, "max"), summed(x + 1, world), summed(x + 1, world, "max")


def two_groups(x: Any, world: str, alone: str) -> Any:
    """Two sums over all ranks, and two over a group of one rank."""
    return summed(x, world), summed(x, alone), summed(x + 1, world), summed(x + 1, alone)


def two_types(x: Any, world: str, alone: str) -> Any:
    """Two sums of float32, two of float64."""
    d = x.double()
    return summed(x, world), summed(d, world), summed(x + 1, world), summed(d + 1, world)


def crossed(x: Any, world: str, alone: str) -> Any:
    """Each sum can go with the other, and each maximum, but not both."""
    return summed(summed(x, world, "max"), world), summed(summed(x, world), world, "max")


def of_other_depth(x: Any, world: str, alone: str) -> Any:
    """Two sums that do not need each other, one of them after a maximum."""
    return summed(x, world), summed(summed(x * 2, world, "max"), world)


# a program, the all-reduces that are left, and the hint for a pass that gets the program wrong
PROGRAMS: dict[Callable[..., Any], tuple[int, str]] = {
    three: (1, "each part has the shape and the place of the input that it was made of: split, then reshape"),
    dependent: (2, "one all-reduce needs the result of another: those two can never be one"),
    late: (1, "one result is used before the other's input is there: put the nodes into another order first"),
    sum_and_max: (2, "one all-reduce has one operation: keep sums and maxima apart"),
    two_groups: (2, "an all-reduce is over one group: keep the groups apart"),
    two_types: (2, "cat makes one type of two: keep the dtypes apart"),
    crossed: (
        4,
        "two merged pairs wait for each other: before you merge, ask whether one needs the other, with what is merged "
        "already as one node",
    ),
    of_other_depth: (
        2,
        "neither sum needs the other, though a maximum comes before one of them: ask for that, not for how many "
        "collectives lie before each",
    ),
}
# programs of which a pass that merges too little gets the same hint
ALSO_TOO_FEW = (late, of_other_depth)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The same numbers by fewer all-reduces, in a graph whose nodes stand after their inputs."""
    hint = "torch.compile calls it as my_bucket(gm, example_inputs): change gm.graph, and return gm.forward"
    for program, (right, wrong) in PROGRAMS.items():
        seen = list(on_ranks(ranks, _compile, attempt, program, hint=hint))
        name = program.__name__
        for rank, found in enumerate(seen):
            if found["error"]:
                raise Mistake(f"{name}, rank {rank}: {found['error']}", wrong)
        runs = seen[0]["runs"]
        said = f"{name}: {seen[0]['before']} all-reduces, now {runs}"
        if not all(found["same"] for found in seen):
            raise Mistake(f"{said}; the numbers are not those of the plain call", wrong)
        if found["after"] < runs:
            hint = (
                "who gets the graph next sees a Python function and no collective: make its operators nodes"
            )
            raise Mistake(f"{said}; {found['after']} in the graph", hint)
        if runs > seen[0]["before"]:
            raise Mistake(said, "the old ones are still in the graph: erase them, with their waits")
        if any(found["early"] for found in seen):
            raise Mistake(
                f"{said}; {seen[0]['early']} does not wait", "wait once for the whole, then split it"
            )
        if runs > right:
            raise Mistake(
                f"{said}, and {right} would do", _too_few(program, runs == seen[0]["before"], wrong)
            )
        say(said)


def _too_few(program: Callable[..., Any], none: bool, wrong: str) -> str:
    """The hint for a pass that merges less than it could, or nothing at all."""
    if program in ALSO_TOO_FEW:
        return wrong
    if none:
        return "collect the all-reduces by what has to agree: their operation, group and dtype"
    return "any number of independent ones may become one, neighbours or not: more than pairs"


def _compile(attempt: Attempt, program: Callable[..., Any]) -> dict[str, Any]:
    """On a rank: compile a program with the attempt as its backend, and run it; errors of torch's as text."""
    me = here()
    dynamo_reset()
    alone = [dist.new_group([rank]) for rank in range(me.world_size)][me.rank]
    x = torch.arange(1.0, 5.0, device=me.device) + me.rank
    given = (x, world_name(), alone.group_name)
    found: dict[str, Any] = {"error": "", "same": True, "early": "", "runs": 0}

    def reduces(graph: torch.fx.Graph) -> int:
        return sum("all_reduce" in str(node.target) for node in graph.nodes)

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found["before"] = reduces(gm.graph)
        try:
            run = attempt(gm, inputs)
            graph = getattr(getattr(run, "__self__", gm), "graph", gm.graph)
            graph.lint()
        except RuntimeError as error:
            if "before it has been defined" in str(error):
                raise _Unordered(str(error).splitlines()[0]) from None
            raise
        if not callable(run):
            raise TypeError(f"the backend returns {type(run).__name__}")
        found["after"] = reduces(graph)
        for node in graph.nodes:
            users = [user for user in node.users if "wait_tensor" not in str(user.target)]
            if "all_reduce" in str(node.target) and users:
                found["early"] = str(users[0])
        return run

    try:
        compiled = torch.compile(own(program), backend=backend, fullgraph=True)
        expected = program(*given)
        try:
            results = compiled(*given)
            found["same"] = all(
                y.dtype == right.dtype and torch.equal(y, right)
                for y, right in zip(results, expected, strict=True)
            )
            found["runs"] = operations(lambda: compiled(*given))["_c10d_functional::all_reduce"]
        except Exception as error:
            inner = getattr(error, "inner_exception", error)  # of torch's BackendCompilerFailed
            if inner is not error and not isinstance(inner, _Unordered):
                raise inner from None  # the attempt itself: its own lines say more
            found["error"] = str(inner).splitlines()[0]
    finally:
        dist.destroy_process_group(alone)
    return found


class _Unordered(Exception):
    """A graph in which a node stands before one of its inputs."""


bucket = Exercise(
    "fsdp.bucket",
    "a pass that makes one all-reduce of several",
    "hard",
    20,
    (
        "the same numbers, and a graph that lints",
        "one all-reduce and one wait, as nodes of the graph, for independent ones of one operation, group and dtype "
        "(those whose merges would wait for each other may stay apart)",
        "all others apart",
    ),
    judge,
)
