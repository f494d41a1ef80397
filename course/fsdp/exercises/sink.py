"""Exercise: an FX pass that starts gathers one matmul earlier, and waits only where the result is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import functional_op, world_name

__all__ = ["sink"]

HINT = "it is called as my_sink(graph), with a torch.fx.Graph, and moves nodes of it"
MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
STARTS = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")


def _gather(piece: Any) -> Any:
    start = functional_op("all_gather_into_tensor")(piece, dist.get_world_size(), world_name())
    return functional_op("wait_tensor")(start)


def _scatter(x: Any) -> Any:
    start = functional_op("reduce_scatter_tensor")(x, "sum", dist.get_world_size(), world_name())
    return functional_op("wait_tensor")(start)


def _reduce(x: Any) -> Any:
    start = functional_op("all_reduce")(x, "sum", world_name())
    return functional_op("wait_tensor")(start)


def chain(x: Any, *pieces: Any) -> Any:
    """Four weights, each gathered where it is used."""
    for piece in pieces:
        x = x @ _gather(piece)
    return x


def relus(x: Any, *pieces: Any) -> Any:
    """More than matmuls between the gathers."""
    for piece in pieces:
        x = torch.relu(x @ _gather(piece).t()) * 2
    return x


def computed(x: Any, *pieces: Any) -> Any:
    """What is gathered is computed from what came just before, and cannot start earlier."""
    for piece in pieces:
        x = x @ _gather(piece * x[:1, :1])
    return x


def mixed(x: Any, *pieces: Any) -> Any:
    """As in a backward: a gather, the reduce-scatter of a gradient, the matmul that needs the gather."""
    reduced = []
    for piece in pieces:
        weight = _gather(piece)
        reduced.append(_scatter(x.t() @ x))
        x = x @ weight
    return x, reduced


def reduced_before(x: Any, *pieces: Any) -> Any:
    """Two reduce-scatters stand between a matmul and the gather."""
    y = x @ x
    reduced = [_scatter(y), _scatter(x)]
    return y @ _gather(pieces[0]), reduced


def summed_before(x: Any, *pieces: Any) -> Any:
    """An all-reduce stands between a matmul and the gather."""
    y = x @ x
    total = _reduce(y.sum(0))
    return y @ _gather(pieces[0]), total


def two_first(x: Any, *pieces: Any) -> Any:
    """Two gathers, and no matmul before the second."""
    first, second = _gather(pieces[0]), _gather(pieces[1])
    return x @ first @ second


def biased(x: Any, *pieces: Any) -> Any:
    """Linear layers with biases, which are gathered as well: addmm."""
    biases = [piece[:, 0].contiguous() for piece in pieces]
    for piece, bias in zip(pieces, biases, strict=True):
        x = torch.addmm(_gather(bias), x, _gather(piece))
    return x


def used_late(x: Any, *pieces: Any) -> Any:
    """The first result is used by two matmuls, after two that do not need it; the one traced last stands first."""
    first = _gather(pieces[0])
    y = x @ x.t() @ x
    return y @ first + x @ first


def _traced(program: Callable[..., Any], x: Any, pieces: list[Any]) -> Any:
    gm = make_fx(program)(x, *pieces)
    if program is used_late:
        *_, earlier, later = [node for node in gm.graph.nodes if node.target in MATMULS]
        earlier.prepend(later)
        gm.recompile()
    return gm


# a program; matmuls between start and wait, of each collective in order; weights gathered before their use, at most
PROGRAMS: dict[Callable[..., Any], tuple[list[int], int]] = {
    chain: ([0, 1, 1, 1], 2),
    relus: ([0, 1, 1, 1], 2),
    computed: ([0, 0, 0, 0], 1),
    used_late: ([2], 1),
    two_first: ([0, 1], 2),
    biased: ([0, 0, 1, 1, 1, 1, 1, 1], 4),
    reduced_before: ([0], 1),
    summed_before: ([0], 1),
    mixed: ([], 2),  # filled in below: what is after a reduce-scatter depends on where it waits
}
# of the gathers of `mixed`: one matmul, that of the gradient, stands between each and its use
MIXED = [1, 2, 2, 2]


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The numbers, where waits stand, how early gathers start, and the order of collectives."""
    for program, (expected, most) in PROGRAMS.items():
        name = program.__name__
        seen = list(on_ranks(ranks, _look, attempt, program, hint=HINT))
        for rank, found in enumerate(seen):
            if found["error"]:
                raise Mistake(
                    f"{name}, rank {rank}: {found['error']}",
                    "node.users has the order in which users were made: the first one in the graph may be another"
                    if "wait_tensor" in found["error"].partition(" of Node")[0]
                    else "a node stands before one of its inputs: stop there",
                )
        found = seen[0]
        if not found["same nodes"]:
            raise Mistake(
                f"{name}: there are {found['nodes']} calls, and there were {found['had']}",
                "move nodes, and neither add nor erase any: other.prepend(node) moves it",
            )
        if not all(one["right"] for one in seen):
            raise Mistake(
                f"{name}: the numbers are others", "each node keeps its inputs: only its place changes"
            )
        if found["order"] != found["old order"]:
            raise Mistake(
                f"{name}: collectives start as {' '.join(found['order'])}, and were {' '.join(found['old order'])}",
                "a start may pass a matmul, and no start of another collective: stop there",
            )
        if found["far"]:
            raise Mistake(
                f"{name}: {found['far']} stands between a wait and the first node that uses it",
                "a wait belongs directly before the first of its users, and this one is the first in the new order",
            )
        if found["held"] > most:
            raise Mistake(
                f"{name}: {found['held']} weights are gathered before their use at one time",
                "one matmul earlier is enough: each further one holds another whole weight in memory",
            )
        right = MIXED if program is mixed else expected
        if any(got < wanted for got, wanted in zip(found["between"], right, strict=True)):
            raise Mistake(
                f"{name}: matmuls between start and wait of the gathers: {found['between']}",
                "the start may stand before the matmul that precedes it, and before what stands between them, unless "
                "that is its input or another start",
            )
    say(
        "waits stand at first uses; each gather starts one matmul earlier where it can; two whole weights at most"
    )


def _look(attempt: Attempt, program: Callable[..., Any]) -> dict[str, Any]:
    """On a rank: trace a program, let the attempt move its nodes, run it, and say how it lies now."""
    size, rank = dist.get_world_size(), dist.get_rank()
    draw = torch.Generator().manual_seed(rank)
    width = 6 * size
    x = torch.randn(width, width, generator=draw)
    pieces = [torch.randn(width // size, width, generator=draw) for _ in range(4)]
    gm = _traced(program, x, pieces)
    right = _flat(gm(x, *pieces))
    had, old = [str(node.target) for node in gm.graph.nodes], _starts(gm.graph)
    old_names = [node.name for node in old]
    found: dict[str, Any] = {"error": ""}
    attempt(gm.graph)
    try:
        gm.graph.lint()
    except RuntimeError as error:
        return {"error": str(error).splitlines()[0][:100]}
    graph = gm.graph
    now = [str(node.target) for node in graph.nodes]
    found["same nodes"] = sorted(now) == sorted(had)
    found["had"], found["nodes"] = len(had), len(now)
    if not found["same nodes"]:
        return found
    gm.recompile()
    got = _flat(gm(x, *pieces))
    found["right"] = len(got) == len(right) and all(map(torch.equal, got, right))
    words = {"all_gather": "gather", "reduce_scatter": "scatter", "all_reduce": "reduce"}
    number = {name: i for i, name in enumerate(old_names)}

    def short(nodes: list[fx.Node]) -> list[str]:
        names = [next(word for key, word in words.items() if key in str(node.target)) for node in nodes]
        return [f"{name}{number.get(node.name, '')}" for name, node in zip(names, nodes, strict=True)]

    found["order"] = short(_starts(graph))
    found["old order"] = [
        f"{next(word for key, word in words.items() if key in target)}{i}"
        for i, target in enumerate(target for target in had if any(start in target for start in STARTS))
    ]
    found |= _places(graph)
    return found


def _starts(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if any(start in str(node.target) for start in STARTS)]


def _places(graph: fx.Graph) -> dict[str, Any]:
    nodes = list(graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    far, between, spans = "", [], []
    for start in _starts(graph):
        (wait,) = start.users
        first = min(wait.users, key=lambda user: place[user])
        inside = nodes[place[wait] + 1 : place[first]]
        strange = [node for node in inside if "wait_tensor" not in str(node.target)]
        if strange and not far:
            far = str(strange[0])
        if "all_gather" in str(start.target):
            between.append(sum(node.target in MATMULS for node in nodes[place[start] : place[wait]]))
            spans.append((place[start], place[_matmul(first)]))
    held = max(
        sum(begin < place[node] <= end for begin, end in spans) for node in nodes if node.target in MATMULS
    )
    return {"far": far, "between": between, "held": held}


def _matmul(node: fx.Node) -> fx.Node:
    """The matmul that a result is for: the first user itself, or what takes its transpose."""
    while node.target not in MATMULS and node.users:
        node = next(iter(node.users))
    return node


def _flat(result: Any) -> list[Any]:
    return [result] if isinstance(result, torch.Tensor) else [x for part in result for x in _flat(part)]


sink = Exercise(
    "fsdp.sink",
    "gathers one matmul earlier, waits at the first use",
    "medium",
    15,
    (
        "the same numbers, in a graph that lints",
        "all moves as above",
        "collectives keep their order",
    ),
    judge,
)
