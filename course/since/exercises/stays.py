"""Lesson 17, `since.stays`: from the diff of two logs, the lines that still differ between ranks with the switch on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from labkit import lessons
from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import funcol

__all__ = ["stays"]

LINES: dict[str, Callable[..., Any]] = {  # what the lesson's job runs
    "a": lambda x, mesh, tp: funcol.all_reduce(x, "sum", tp),
    "b": lambda x, mesh, tp: x * mesh.size(),
    "c": lambda x, mesh, tp: x + mesh.get_local_rank(),
    "d": lambda x, mesh, tp: x + mesh.get_coordinate()[0],
    "e": lambda x, mesh, tp: (
        DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        .redistribute(placements=[Shard(0)])
        .to_local()
    ),
    "f": lambda x, mesh, tp: distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None).to_local(),
    "g": lambda x, mesh, tp: (
        DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
        .redistribute(placements=[Shard(1)])
        .to_local()
    ),
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Compare a set of letters with the lines whose graphs differ on two ranks, with the switch on."""
    given = on_ranks(ranks, attempt, only=0, hint="it is called without arguments")[0]
    letters: list[Any] = (
        list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping) else [None]
    )
    if not all(isinstance(letter, str) and letter in LINES for letter in letters):
        raise Mistake(f"the answer is {given!r}", f"a set of letters from {', '.join(LINES)}")
    named = set(letters)
    with Ranks(2, device="cpu", backend="fake", quiet=True) as two:
        texts = {letter: on_ranks(two, quietly, _text, letter) for letter in LINES}
    differ = {letter for letter, found in texts.items() if len(set(found)) > 1}
    if missing := sorted(differ - named):
        raise Mistake(
            f"{', '.join(missing)}: with the switch on the graphs of the two ranks still differ",
            "Shard(0) to Shard(1) on a CPU cuts by mesh.get_local_rank(), a number in Python"
            if missing == ["g"]
            else "distribute_tensor cuts the whole tensor in Python, by the coordinate as a number"
            if "f" in missing and not {"c", "d"} & set(missing)
            else "the switch reaches what DTensor asks from Replicate to Shard, and no number of your Python's",
        )
    if extra := sorted(named - differ):
        raise Mistake(
            f"{', '.join(extra)}: with the switch on the graphs of the two ranks are equal",
            "the switch takes a group from a mesh, and a DTensor's coordinate, when the graph runs"
            if set(extra) & {"a", "e"}
            else "the diff has no line for it: the size of a mesh is the same on every rank",
        )
    say(f"still different with the switch on: {', '.join(sorted(differ))}")


def _text(letter: str) -> str:
    program = lessons.program("since")
    alone = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp"))["tp"]
    with program.switched():
        graphs, _ = program.captured(LINES[letter], torch.ones(5, 2), program.line_mesh(), alone)
    return "\n\n".join(map(program.plain_text, graphs))


stays = Exercise(
    "since.stays",
    "what the switch leaves",
    "medium",
    10,
    (
        "the letters of the lines whose graphs still differ between ranks when the switch is on (on a CPU), as a set",
    ),
    judge,
)
