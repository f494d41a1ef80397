"""Lesson 05, `trap.gate`: a gate where the installed torch needs one, and no gradient that is lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from course.shared.capture import operations
from course.shared.variants import own
from labkit import lessons
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset

__all__ = ["gate"]

cliff = lessons.program("cliff")


def _plain_broadcast(x: Any) -> Any:
    dist.broadcast(x, 0)
    return x


PLAIN = {"broadcast": _plain_broadcast, "all_reduce": cliff.inplace}


def _judge_gate(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """In place in eager, one graph compiled, no gate around a call that traces as it is, and no gradient is lost."""
    hint = (
        "it is called as my_step(x): a broadcast from rank 0, an all-reduce, times 2; it returns the result"
    )
    for rank, seen in enumerate(on_ranks(ranks, _look_at_gate, attempt, hint=hint)):
        where = f"rank {rank}: "
        if seen["eager"] != seen["right"]:
            hint = f"{seen['right']} is right: the sum over the ranks of rank 0's numbers, times 2"
            raise Mistake(f"{where}in eager it returns {seen['eager']}", hint)
        if seen["functional"]:
            hint = "in eager both collectives are cheaper in place: the functional form is for the compiler"
            raise Mistake(f"{where}in eager it runs {', '.join(seen['functional'])}", hint)
        if seen["refused"]:
            hint = (
                "one of the two plain calls does not trace: give the compiler the functional form of that one"
            )
            raise Mistake(f"{where}fullgraph=True refuses it: {seen['refused']}", hint)
        if seen["compiled"] != seen["right"]:
            hint = "the functional form leaves x alone: use its result"
            raise Mistake(
                f"{where}compiled it returns {seen['compiled']}, and {seen['right']} is right", hint
            )
    trained = _trained(ranks, attempt)
    # with a derivative of its own the gate cannot change the gradient, and torch 2.11 needs it there
    own_derivative = trained.right and not trained.refused
    if not own_derivative and "all_reduce" in seen["gated"] and "all_reduce" in seen["traces"]:
        hint = "this torch traces the plain dist.all_reduce, and rewrites it itself: leave its gate out"
        raise Mistake("compiled, it takes the functional all_reduce", hint)
    if not trained.right:
        raise Mistake(
            f"with a gradient: {trained}",
            "this step is for inference: where x.requires_grad under grad mode, raise an error, eager and compiled",
        )
    say("eager: no functional operation; compiled: one graph, the same numbers")
    say(f"plain calls that this torch traces: {', '.join(seen['traces'])}; gated: {', '.join(seen['gated'])}")
    say(f"with a gradient: {trained}")


def _look_at_gate(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the attempt in eager, under fullgraph, and in eager while `is_compiling` says yes."""
    me = here()

    def start() -> Any:
        return torch.full((2,), me.rank + 1.0, device=me.device)

    def refused(function: Callable[..., Any]) -> str:
        dynamo_reset()
        compiled = torch.compile(own(function), fullgraph=True, backend="eager")
        try:
            with warnings.catch_warnings(action="ignore"):  # about the call that it refuses
                found["compiled"] = compiled(start()).tolist()
        except Exception as error:
            if type(error).__name__ != "Unsupported":
                raise
            return str(error).splitlines()[0]
        return ""

    def names(call: Callable[[], Any]) -> list[str]:
        return [
            n.partition("::")[2].rstrip("_") for n in operations(call) if n.startswith("_c10d_functional")
        ]

    found: dict[str, Any] = {"right": [2.0 * me.world_size] * 2, "compiled": []}
    with torch.no_grad():
        found["traces"] = [name for name, function in PLAIN.items() if not refused(function)]
        found["eager"] = (attempt(start()) * 1).tolist()
        x = start()
        found["functional"] = names(lambda: attempt(x))
        found["refused"] = refused(attempt)
        with (
            mock.patch.object(torch.compiler, "is_compiling", lambda: True),
            mock.patch.object(torch.compiler, "is_dynamo_compiling", lambda: True),
        ):
            found["gated"] = [name for name in names(lambda: attempt(x)) if name in PLAIN]
    return found


@dataclass(frozen=True)
class _Trained:
    """What a step does with a gradient, by mode: 'refused', or the gradients of rank 0, rank 1, ..."""

    found: dict[str, str | list[Any]]
    world_size: int

    @property
    def right(self) -> bool:
        """Whether no mode loses a gradient in silence: both refuse, or have those of one process.

        The result is 2 n times rank 0's numbers. The loss is its sum, replicated or summed over the ranks.
        """
        n = self.world_size
        answers = [[[2.0 * n * losses] * 2, *[[0.0] * 2] * (n - 1)] for losses in (1, n)]
        modes = list(self.found.values())
        return self.refused or (modes[0] in answers and modes[0] == modes[1])

    @property
    def refused(self) -> bool:
        """Whether both modes refuse a gradient."""
        return all(mode == "refused" for mode in self.found.values())

    def __str__(self) -> str:
        return ", ".join(
            f"{mode} {'it refuses' if found == 'refused' else f'the ranks have {found}'}"
            for mode, found in self.found.items()
        )


def _trained(ranks: Ranks, attempt: Attempt) -> _Trained:
    found: dict[str, str | list[Any]] = {}
    for mode in ("eager", "compiled"):
        mine = list(on_ranks(ranks, _train, attempt, mode, hint="it is called as my_step(x)"))
        found[mode] = "refused" if all(one == "refused" for one in mine) else mine
    return _Trained(found, ranks.world_size)


def _train(attempt: Attempt, mode: str) -> str | list[float] | None:
    """On a rank: 'refused' where the attempt raises, else the gradient of its input; None where there is none."""
    me = here()
    x = torch.full((2,), me.rank + 1.0, device=me.device, requires_grad=True)
    function = own(attempt)
    dynamo_reset()
    step = torch.compile(function, fullgraph=True, backend="aot_eager") if mode == "compiled" else function
    with warnings.catch_warnings(action="ignore"):  # that autograd does not see a collective
        try:
            y = step(x * 1)  # a leaf may not be changed in place
        except Exception:
            return "refused"
        if y.requires_grad:
            y.sum().backward()
    return None if x.grad is None else x.grad.tolist()


gate = Exercise(
    "trap.gate",
    "a gate where it is needed",
    "medium",
    10,
    (
        "for inference: the same numbers in eager and compiled, and an error where a gradient would be lost",
        "in eager, no functional operation",
        "compiled, one graph, and no gate around a call that this torch traces as it is",
    ),
    _judge_gate,
)
