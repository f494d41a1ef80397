"""Lesson 17: equal graphs by hand and with the switch, constants that stay, and a placement puzzle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from labkit import lessons
from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import funcol

__all__ = ["placements", "rank_as_data", "stays", "with_the_switch"]

program = lessons.program("since")


def judge_as_data(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Compile without the switch, on two ranks: numbers, one graph, equal graphs, and own rows only."""
    hint = "it is called as my_program(x, me): x is (4, 2), me is a tensor with one number"
    with _pair(ranks) as two:
        _judge(list(on_ranks(two, quietly, _by_data, attempt, hint=hint)), say, "2 rows")


def judge_switched(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Compile with the switch, on two ranks: five rows, numbers, one graph, equal graphs, and own rows only."""
    hint = "it is called as my_portable(x, mesh): x is a plain tensor, (5, 2), and a plain tensor comes back"
    with _pair(ranks) as two:
        _judge(list(on_ranks(two, quietly, _by_mesh, attempt, hint=hint)), say, "its own rows")


def _pair(ranks: Ranks) -> Ranks:
    return Ranks(2, device="cpu", backend="gloo", quiet=True)


def _by_data(attempt: Attempt) -> dict[str, Any]:
    x = torch.arange(8.0).reshape(4, 2)
    return _compiled(attempt, x, torch.tensor([dist.get_rank()]))


def _by_mesh(attempt: Attempt) -> dict[str, Any]:
    with program.switched():
        return _compiled(attempt, torch.arange(10.0).reshape(5, 2), program.line_mesh())


def _compiled(attempt: Attempt, x: torch.Tensor, other: Any) -> dict[str, Any]:
    graphs, constants = list[str](), list[Any]()

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(program.plain_text(graph))
        held = [getattr(graph, node.target, None) for node in graph.graph.nodes if node.op == "get_attr"]
        constants.append([value.tolist() for value in held if isinstance(value, torch.Tensor)])
        return program.make_boxed_func(graph.forward)

    torch.compiler.reset()
    with torch.no_grad():
        y = torch.compile(attempt, backend=program.aot_autograd(fw_compiler=keep))(x, other)
    right = type(y) is torch.Tensor and y.shape == x.shape and torch.equal(y, 2 * x)
    # all rows; and a column, as it is or turned
    others = [f'"f32[{shape}]"' for shape in (f"{len(x)}, 2", f"{len(x)}, 1", f"1, {len(x)}")]
    doubled = [
        line
        for text in graphs
        for line in text.splitlines()
        if "aten.mul.Tensor" in line and line.endswith(", 2)")
    ]
    return {
        "graphs": graphs,
        "right": bool(right),
        "gathers": sum("all_gather" in text for text in graphs),
        "all": any(shape in line for line in doubled for shape in others),
        "constants": constants,
    }


def _judge(found: Sequence[dict[str, Any]], say: Callable[[str], None], part: str) -> None:
    numbers = [one["right"] for one in found]
    counts = [len(one["graphs"]) for one in found]
    if not all(numbers):
        raise Mistake(
            f"right numbers by rank: {numbers}",
            "every rank returns all rows, each doubled, as a plain tensor",
        )
    if not all(one["gathers"] for one in found) or any(one["all"] for one in found):
        raise Mistake(
            "the numbers are right, and some rank doubles all rows, or columns, or gathers none",
            f"the work is to be shared: a rank doubles {part} and gets the others by an all-gather",
        )
    if set(counts) != {1}:
        raise Mistake(
            f"graphs by rank: {counts}",
            "a number that Python takes out of a tensor breaks the graph: compute with the tensor, and index by it",
        )
    mine, other = (set(one["graphs"][0].splitlines()) for one in found)
    if mine != other:
        line = sorted(mine - other or other - mine)[0]
        raise Mistake(
            f"only one of the ranks has: {line[:110]}",
            "the rank is a number in Python there, and Python's numbers become constants of the graph",
        )
    held = [one["constants"] for one in found]
    if held[0] != held[1]:
        raise Mistake(
            f"the graphs have the same text, and hold other tensors: {held[0]} and {held[1]}",
            "a tensor that the program makes of the rank is a constant of the graph as well, with its number",
        )
    say(f"right on both ranks; graphs by rank: {counts}; lines that only one rank has: 0")


LETTERS: dict[str, Callable[..., Any]] = {
    "a": lambda x, mesh: funcol.all_reduce(x, "sum", mesh),
    "b": lambda x, mesh: x * mesh.size(),
    "c": lambda x, mesh: x + mesh.get_local_rank(),
    "d": lambda x, mesh: x + mesh.get_coordinate()[0],
    "e": lambda x, mesh: (
        DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
        .redistribute(placements=[Replicate()])
        .to_local()
    ),
    "f": lambda x, mesh: distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None).to_local(),
}


def judge_stays(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Compare a set of letters with the programs whose graphs differ on two ranks, with the switch on."""
    named = on_ranks(ranks, attempt, only=0, hint="it is called without arguments")[0]
    if not isinstance(named, set) or not named <= set(LETTERS):
        raise Mistake(f"the answer is {named!r}", f"a set of letters from {', '.join(LETTERS)}")
    with Ranks(2, device="cpu", backend="fake", quiet=True) as two:
        texts = {letter: list(on_ranks(two, _text, letter)) for letter in LETTERS}
    differ = {letter for letter, found in texts.items() if len(set(found)) > 1}
    if missing := sorted(differ - named):
        raise Mistake(
            f"{', '.join(missing)}: the graphs of the two ranks differ",
            "distribute_tensor cuts the whole tensor in Python, by the coordinate as a number; redistribute asks later"
            if missing == ["f"]
            else "the switch reaches what DTensor asks its mesh in a redistribution, and no number of your Python's",
        )
    if extra := sorted(named - differ):
        raise Mistake(
            f"{', '.join(extra)}: the graphs of the two ranks are equal",
            "the size of a mesh is the same on every rank, and DTensor's own coordinates have become operators",
        )
    say(f"different with the switch on: {', '.join(sorted(differ))}")


def _text(letter: str) -> str:
    with program.switched():
        graphs, _ = program.captured(LETTERS[letter], torch.ones(4, 2), program.line_mesh())
    return "\n\n".join(graphs)


def judge_placements(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Put four local tensors together with the placements, in one process."""
    named = on_ranks(ranks, attempt, only=0, hint="it is called without arguments")[0]
    if (
        not isinstance(named, list | tuple)
        or len(named) != 2
        or not all(isinstance(p, Placement) for p in named)
    ):
        raise Mistake(
            f"the answer is {named!r}", "a list of two placements: the one for dp, then the one for tp"
        )
    with Ranks(4, device="cpu", backend="fake", quiet=True) as four:
        whole = on_ranks(four, _whole, named, only=0, hint="these parts cannot be put together so")[0]
    meant = (torch.arange(8.0).reshape(2, 4) + 10).tolist()
    seen = f"{', '.join(map(str, named))}: the whole is {whole}"
    if whole != meant:
        raise Mistake(seen, _why(named))
    say(seen)


def _why(named: Sequence[Placement]) -> str:
    dp, tp = named
    if not dp.is_partial():
        return "the numbers of dp 0 and dp 1 have to be added: each has a summand of the whole"
    return (
        "the parts along tp lie side by side: they are cut along the columns"
        if not tp.is_shard(1)
        else "add them up"
    )


def _whole(named: Sequence[Placement]) -> list[list[float]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def part(rank: int) -> torch.Tensor:
        mine = torch.arange(8.0).reshape(2, 4)[:, 2 * (rank % 2) : 2 * (rank % 2) + 2]
        return torch.full((2, 2), 10.0) if rank > 1 else mine.contiguous()

    with program.LocalTensorMode(4) as mode:
        placed = DTensor.from_local(mode.rank_map(part), mesh, list(named), run_check=False)
        return program.parts(placed.redistribute(placements=[Replicate(), Replicate()]))["rank 0"]


rank_as_data = Exercise(
    "since.rank_as_data",
    "equal graphs without the switch",
    "medium",
    10,
    (
        "the right numbers on both ranks",
        "one graph",
        "no rank's graph has a line that the other's has not",
        "each rank doubles two rows, and not all",
    ),
    judge_as_data,
)
with_the_switch = Exercise(
    "since.with_the_switch",
    "equal graphs with the switch",
    "medium",
    10,
    (
        "a plain tensor with the right numbers on both ranks",
        "equal graphs with the switch on",
        "each rank doubles its own rows only",
    ),
    judge_switched,
)
stays = Exercise(
    "since.stays",
    "the constants that stay",
    "medium",
    5,
    ("the letters of the programs whose graphs still differ, as a set",),
    judge_stays,
)
placements = Exercise(
    "since.placements",
    "a placement puzzle",
    "easy",
    5,
    ("a list of two placements with which the parts are this whole tensor",),
    judge_placements,
)
