"""Every collective in a small program of its own: in place, with `async_op=True`, and in its functional form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.variants import own
from labkit.torch_compat import funcol

__all__ = ["COLLECTIVES", "FORMS", "Program", "choose", "programs"]

INPLACE, ASYNC, UNWAITED, FUNCTIONAL = FORMS = ("in place", "async", "async, no wait", "functional")
REDUCED = ("all_reduce sum", "all_reduce max", "all_reduce avg")
COLLECTIVES = (
    *REDUCED,
    *("all_gather_into_tensor", "all_gather list", "reduce_scatter_tensor", "reduce_scatter list"),
    *("all_to_all_single", "all_to_all list", "broadcast", "reduce", "scatter", "barrier"),
    *("all_gather_object", "broadcast_object_list"),
)


@dataclass(frozen=True)
class Program:
    """One collective in one form: `body` takes the rank's tensor and returns what the collective left behind."""

    collective: str
    form: str
    body: Callable[[Any], Any]


def choose(only: Sequence[str] = ()) -> tuple[str, ...]:
    """The collectives whose names begin with one of `only`, in the table's order; all of them without.

    Raises ValueError for a beginning that none has.

    >>> choose(["all_reduce", "barrier"])
    ('all_reduce sum', 'all_reduce max', 'all_reduce avg', 'barrier')
    """
    for start in only:
        if not any(name.startswith(start) for name in COLLECTIVES):
            raise ValueError(f"no collective begins with {start!r}: there is {', '.join(COLLECTIVES)}")
    return tuple(name for name in COLLECTIVES if not only or name.startswith(tuple(only)))


def programs(names: Sequence[str]) -> Iterator[Program]:
    """The programs of these collectives, on a rank; each has a code object of its own.

    They work on a tensor that they made themselves (`x * 1`), so that no graph input is changed, and compute with
    what came out (`+ 0`), so that a break leaves something to compile on both sides.
    """
    for program in _all():
        if program.collective in names:
            yield Program(program.collective, program.form, own(program.body))


def _all() -> Iterator[Program]:
    for name, build in _classic().items():
        yield Program(name, INPLACE, build(False))
        if not name.endswith(("object", "object_list")):
            yield Program(name, ASYNC, build(True))
        if name == "all_reduce sum":
            yield Program(name, UNWAITED, _unwaited)
        if functional := _functional().get(name):
            yield Program(name, FUNCTIONAL, functional)


def _unwaited(x):
    y = x * 1
    dist.all_reduce(y, async_op=True)
    for _ in range(32):  # what is compiled after the break takes longer than the collective
        y = y + 0
    return y


def _classic() -> dict[str, Callable[[bool], Callable[[Any], Any]]]:
    """For each collective a function of `async_op` that gives its program."""

    def writing(call: Callable[..., Any], *rest: Any) -> Callable[[bool], Callable[[Any], Any]]:
        """For a collective that changes the one tensor that it is given."""

        def build(async_op: bool) -> Callable[[Any], Any]:
            def in_place(x):
                y = x * 1
                call(y, *rest)
                return y + 0

            def waited(x):
                y = x * 1
                call(y, *rest, async_op=True).wait()
                return y + 0

            return waited if async_op else in_place

        return build

    def filling(call: Callable[..., Any], outputs: Callable[[Any], Any], inputs: Callable[[Any], Any]) -> Any:
        """For a collective that fills tensors made for it: one, or a list that is put together to look at."""

        def build(async_op: bool) -> Callable[[Any], Any]:
            def in_place(x):
                y = x * 1
                out = outputs(y)
                call(out, inputs(y))
                return _joined(out)

            def waited(x):
                y = x * 1
                out = outputs(y)
                call(out, inputs(y), async_op=True).wait()
                return _joined(out)

            return waited if async_op else in_place

        return build

    size = dist.get_world_size()
    op = dist.ReduceOp

    def scattered(async_op: bool) -> Callable[[Any], Any]:
        def scatter(x):
            y = x * 1
            out = y.new_empty(len(y) // size)
            work = dist.scatter(
                out, list(y.chunk(size)) if dist.get_rank() == 0 else None, 0, async_op=async_op
            )
            if async_op:
                work.wait()
            return out + 0

        return scatter

    def barred(async_op: bool) -> Callable[[Any], Any]:
        def in_place(x):
            y = x * 1
            dist.barrier()
            return y + 0

        def waited(x):
            y = x * 1
            dist.barrier(async_op=True).wait()
            return y + 0

        return waited if async_op else in_place

    def gathered_objects(async_op: bool) -> Callable[[Any], Any]:
        def gather_objects(x):
            found: list[Any] = [None] * size
            dist.all_gather_object(found, {"from": dist.get_rank()})
            return x + 0, found

        return gather_objects

    def broadcast_objects(async_op: bool) -> Callable[[Any], Any]:
        def broadcast(x):
            found = [{"from": dist.get_rank()}]
            dist.broadcast_object_list(found, 0)
            return x + 0, found

        return broadcast

    return {
        "all_reduce sum": writing(dist.all_reduce),
        "all_reduce max": writing(dist.all_reduce, op.MAX),
        "all_reduce avg": writing(dist.all_reduce, op.AVG),
        "all_gather_into_tensor": filling(
            dist.all_gather_into_tensor, lambda y: y.new_empty(size * len(y)), lambda y: y
        ),
        "all_gather list": filling(dist.all_gather, lambda y: [y * 0 for _ in range(size)], lambda y: y),
        "reduce_scatter_tensor": filling(
            dist.reduce_scatter_tensor, lambda y: y.new_empty(len(y) // size), lambda y: y
        ),
        "reduce_scatter list": filling(
            dist.reduce_scatter, lambda y: y.new_empty(len(y) // size), lambda y: list(y.chunk(size))
        ),
        "all_to_all_single": filling(dist.all_to_all_single, lambda y: y * 0, lambda y: y),
        "all_to_all list": filling(
            dist.all_to_all,
            lambda y: [part * 0 for part in y.chunk(size)],
            lambda y: list(y.chunk(size)),
        ),
        "broadcast": writing(dist.broadcast, 0),
        "reduce": writing(dist.reduce, 0),
        "scatter": scattered,
        "barrier": barred,
        "all_gather_object": gathered_objects,
        "broadcast_object_list": broadcast_objects,
    }


def _joined(out: Any) -> Any:
    return torch.cat(out) if isinstance(out, list) else out + 0


def _functional() -> dict[str, Callable[[Any], Any]]:
    """The functional forms that torch has."""
    world = dist.group.WORLD

    def reducing(name: str) -> Callable[[Any], Any]:
        return lambda x: funcol.all_reduce(x * 1, name, world) + 0

    return {
        **{f"all_reduce {name}": reducing(name) for name in ("sum", "max", "avg")},
        "all_gather_into_tensor": lambda x: funcol.all_gather_tensor(x * 1, 0, world) + 0,
        "reduce_scatter_tensor": lambda x: funcol.reduce_scatter_tensor(x * 1, "sum", 0, world) + 0,
        "all_to_all_single": lambda x: funcol.all_to_all_single(x * 1, None, None, world) + 0,
        "broadcast": lambda x: funcol.broadcast(x * 1, 0, world) + 0,
    }
