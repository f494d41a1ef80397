"""Lesson 10b, `dtensor_compiled.bytes`: a gated MLP whose tokens or weights travel, decided from their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from course.shared.costs import ring_bytes
from labkit.ranks import Ranks, here
from labkit.ranks.output import quietly
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import on_collective

__all__ = ["bytes", "cheaper"]

# tokens, features, hidden features: few tokens, closely both sides of 2 tokens = 3 hidden features, many tokens
SIZES = ((12, 32, 144), (116, 48, 80), (124, 16, 80), (96, 64, 24))


def cheaper(tokens: int, dim: int, hidden: int, size: int) -> tuple[str, float]:
    """Which of the two ways sends fewer bytes in rings of float32, and how many on each rank.

    >>> cheaper(8, 32, 128, 2), cheaper(512, 32, 64, 2)
    (('tokens', 1024.0), ('weights', 12288.0))
    """
    whole, weight = 4 * tokens * dim, 4 * dim * hidden
    moved = ring_bytes("all_gather", size, whole // size) + ring_bytes("reduce_scatter", size, whole)
    fetched = 3 * ring_bytes("all_gather", size, weight // size)
    return ("tokens", moved) if moved <= fetched else ("weights", fetched)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """At each size: the numbers of one process, split by tokens, for the bytes of the cheaper way."""
    hint = "it is called as my_mlp(x, gate, up, down) with DTensors, and returns one"
    for rank, found in enumerate(on_ranks(ranks, quietly, _all_sizes, attempt, hint=hint)):
        for at, one in zip(SIZES, found, strict=True):
            _judge(rank, at, one, len(ranks), say)


def _judge(
    rank: int, at: tuple[int, int, int], found: dict[str, Any], size: int, say: Callable[..., None]
) -> None:
    where = f"rank {rank}, {at[0]} tokens, {at[1]} features, {at[2]} hidden"
    if found["kind"] != "DTensor":
        raise Mistake(f"{where}: it returns a {found['kind']}", "return a DTensor, split by tokens as x is")
    way, target = cheaper(*at, size)
    calls = [(_plain(name), nbytes) for name, nbytes in found["sent"]]
    bytes_sent = sum(ring_bytes(name, size, nbytes) for name, nbytes in calls)
    said = ", ".join(f"{name} {nbytes} B" for name, nbytes in calls) or "nothing"
    finding = f"{where}: {said}: {bytes_sent:.0f} B sent in a ring, the target is {target:.0f} B"
    if not found["right"]:
        raise Mistake(f"{finding}; other numbers than one process's", "first right, then cheap")
    if not found["by tokens"]:
        raise Mistake(f"{finding}; the result is {found['placements']}", "y has to be Shard(0), as x came")
    if bytes_sent > target:
        raise Mistake(finding, _why_dear(calls, way, at, size))
    if not bytes_sent >= target:
        raise Mistake(
            finding,
            "less than either way needs: part of it travels where no collective is counted (send and recv, objects, "
            "another group); use redistribute, or functional collectives",
        )
    alone = sum(ring_bytes(_plain(name), size, nbytes) for name, nbytes in found["alone"])
    say(f"{finding}; with nothing but the last redistribute, DTensor's choice sends {alone:.0f} B")


def _why_dear(calls: list[tuple[str, int]], way: str, at: tuple[int, int, int], size: int) -> str:
    tokens, dim, hidden = at
    x, weight = 4 * tokens * dim // size, 4 * dim * hidden // size
    gathered = [nbytes for name, nbytes in calls if name == "all_gather"]
    if any(name == "all_reduce" for name, _ in calls):
        return "an all-reduce gives everybody all of a tensor of which you keep a share: reduce-scatter is half of it"
    if way == "tokens" and weight in gathered and x not in gathered:
        return "here the tokens, gathered and scattered, are less than three weights: count both before you decide"
    if way == "weights" and weight not in gathered:
        return "here three weights are less than the tokens, gathered and scattered: count both before you decide"
    if gathered.count(x) > 1:
        return "x is used twice: gather it once, before both products"
    return "something else travels: gather x and scatter y, or gather the three weights, and nothing more"


def _plain(name: str) -> str:
    return name.removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")


def _all_sizes(attempt: Attempt) -> list[dict[str, Any]]:
    mesh = init_device_mesh(torch.device(here().device).type, (here().world_size,))
    return [_at(attempt, mesh, *size) for size in SIZES]


def _at(attempt: Attempt, mesh: Any, tokens: int, dim: int, hidden: int) -> dict[str, Any]:
    seed, sent = torch.Generator().manual_seed(0), []
    shapes = ((tokens, dim), (dim, hidden), (dim, hidden), (hidden, dim))
    x, gate, up, down = (
        torch.randn(*shape, generator=seed).to(here().device) / shape[0] ** 0.5 for shape in shapes
    )
    parts = [_part(w, mesh, dim) for w, dim in ((x, 0), (gate, 1), (up, 1), (down, 0))]
    with torch.no_grad(), on_collective(lambda name, nbytes: sent.append((name, nbytes))):
        y = attempt(*parts)
        if isinstance(y, DTensor):
            y.to_local() + 0  # what was started is done
    alone: list[tuple[str, int]] = []
    with torch.no_grad(), on_collective(lambda name, nbytes: alone.append((name, nbytes))):
        left: Any = (F.gelu(parts[0] @ parts[1]) * (parts[0] @ parts[2])) @ parts[3]
        left.redistribute(placements=[Shard(0)]).to_local() + 0
    found: dict[str, Any] = {"kind": type(y).__name__, "sent": sent, "alone": alone}
    if not isinstance(y, DTensor):
        return found
    expected = (F.gelu(x @ gate) * (x @ up)) @ down
    right = y.shape == expected.shape and torch.allclose(y.full_tensor(), expected, atol=1e-5)
    by_tokens = list(y.placements) == [Shard(0)]
    return found | {"right": bool(right), "by tokens": by_tokens, "placements": str(y.placements)}


def _part(whole: torch.Tensor, mesh: Any, dim: int) -> DTensor:
    part = whole.chunk(mesh.size(), dim)[mesh.get_local_rank()].clone()
    return DTensor.from_local(part, mesh, [Shard(dim)], run_check=False)


bytes = Exercise(
    "dtensor_compiled.bytes",
    "tokens or weights",
    "medium",
    10,
    (
        "right numbers, split by tokens",
        "at each of the check's sizes the bytes of the cheaper of the two ways",
    ),
    judge,
)
