"""Lesson 11: a number of the mesh's that every rank has to know, also those outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit import lessons
from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["mean"]

program = lessons.program("mesh")

# of four ranks: rank 0 outside, as in the lesson; two outside, so that rank 1 has nothing to tell; then the last two
# outside, and negative numbers, of which 0 is not the least
MESHES = ((1, 2, 3), (2, 3), (0, 1))
SIZE = 4


def judge_mean(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The mean over the mesh on all ranks, summed up by the mesh's own collective, for two meshes of four ranks."""
    hint = "it is called on every rank as my_mean(part, mesh, ranks) and returns a tensor like `part`"
    with Ranks(SIZE, device="cpu", backend="gloo", quiet=True) as four:
        for mesh in MESHES:
            seen = list(on_ranks(four, quietly, _call, attempt, mesh, hint=hint))
            right = sum(_part(rank, mesh) for rank in mesh) / len(mesh)
            values = [found["value"] for found in seen]
            finding = f"mesh of ranks {', '.join(map(str, mesh))}: each rank has {values}, meant is {right:g}"
            if any(value != right for value in values):
                raise Mistake(finding, _why(values, mesh, right))
            calls = [found["mesh"] for found in seen]
            if not all(calls[rank] for rank in mesh):
                raise Mistake(
                    f"{finding}; collectives of the mesh by rank: {calls}",
                    "the numbers are right, and the sum is not the mesh's own: over the world every rank outside has "
                    "to be in step with it",
                )
            say(f"{finding}; collectives of the mesh by rank: {calls}")


def _why(values: Sequence[Any], mesh: Sequence[int], right: float) -> str:
    if any(value is None for value in values):
        return "some rank returns None: every rank, also one outside, returns a tensor"
    if any(isinstance(value, list) for value in values):
        return "return a tensor like `part`: four numbers, each the mean of those at its place"
    inside = [values[rank] for rank in mesh]
    if all(value == right for value in inside):
        return (
            "the ranks outside do not have it: a collective of a group that a rank is not in warns and does nothing, "
            "so send the result over the world"
        )
    if len(set(values)) == 1 and values[0] == right * len(mesh) / SIZE:
        return "divide by the number of ranks in the mesh: the world's size is another one"
    if mesh == MESHES[0]:
        return "broadcast from a rank that has the mean: the source is a rank's number in the world"
    return "another mesh has other ranks: take the source out of `ranks`"


def _part(rank: int, mesh: Sequence[int]) -> float:
    return -10.0 - 20.0 * rank if mesh == MESHES[-1] else 10.0 * rank


def _call(attempt: Attempt, ranks: tuple[int, ...]) -> dict[str, Any]:
    """On a rank: the attempt's value, and how many collectives of the mesh it called."""
    me = dist.get_rank()
    mesh = dist.new_group(list(ranks), group_desc="mesh")
    _, mark = program.calls_since()
    y = attempt(torch.full((4,), _part(me, ranks)) if me in ranks else None, mesh, list(ranks))
    called = [group for group, _ in program.calls_since(mark)[0]]
    value = None if y is None else float(y[0]) if y.shape == (4,) and (y == y[0]).all() else y.tolist()
    return {"value": value, "mesh": called.count("mesh")}


mean = Exercise(
    "mesh.mean",
    "a number that everybody has to know",
    "medium",
    10,
    (
        "the right mean on every rank, also outside",
        "summed by a collective of the mesh",
        "for any mesh of four ranks",
    ),
    judge_mean,
)
