"""One collective in its eager forms, each in two stages: the call, and what it takes until its result is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.torch_compat import funcol, renamed

__all__ = ["AGAIN", "ASYNC", "COLLECTIVES", "FORMS", "FUNCTIONAL", "IN_PLACE", "forms"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
IN_PLACE, AGAIN, ASYNC, FUNCTIONAL = "in place", "in place again", "async", "functional"
FORMS = (IN_PLACE, AGAIN, ASYNC, FUNCTIONAL)

Stages = tuple[Callable[[], Any], Callable[[Any], Any]]


def forms(collective: str, nbytes: int, device: Any) -> dict[str, Stages]:
    """On a rank: every form of a collective as (start, finish), on float32 zeros that are allocated here, once.

    nbytes: of the tensor that is reduced, gathered or scattered, whole; a rank's piece of it is at least one number.
    `in place again` is `in place`, for the noise floor. `async` is the in-place call with `async_op=True`, which like
    the functional one may come back before the result is there. Finishing waits, on a GPU for the device as well.

    Raises ValueError for an unknown collective.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"unknown collective {collective!r}: there is {', '.join(COLLECTIVES)}")
    world: Any = dist.group.WORLD
    ranks = 1 if collective == "all_reduce" else dist.get_world_size()
    piece = torch.zeros(max(1, nbytes // 4 // ranks), device=device)
    whole = piece if ranks == 1 else piece.new_zeros(piece.numel() * ranks)
    classic: Any
    arguments: tuple[Any, ...]
    functional: Callable[[], Any]
    if collective == "all_reduce":
        classic, arguments = dist.all_reduce, (piece,)
        functional = lambda: funcol.all_reduce(piece, "sum", world)  # noqa: E731
    elif collective == "all_gather":
        classic = renamed(dist, "all_gather_single", "all_gather_into_tensor")
        arguments, gather = (whole, piece), renamed(funcol, "all_gather_single", "all_gather_tensor")
        functional = lambda: gather(piece, 0, world)  # noqa: E731
    else:
        classic = renamed(dist, "reduce_scatter_single", "reduce_scatter_tensor")
        arguments, scatter = (piece, whole), renamed(funcol, "reduce_scatter_single", "reduce_scatter_tensor")
        functional = lambda: scatter(whole, "sum", 0, world)  # noqa: E731
    arrive = torch.cuda.synchronize if piece.is_cuda else lambda: None

    def in_place() -> Any:
        return classic(*arguments)

    def done(_: Any) -> None:
        arrive()

    def started() -> Any:
        return classic(*arguments, async_op=True)

    def waited(promise: Any) -> None:
        promise.wait()
        arrive()

    return {
        IN_PLACE: (in_place, done),
        AGAIN: (in_place, done),
        ASYNC: (started, waited),
        FUNCTIONAL: (functional, waited),
    }
