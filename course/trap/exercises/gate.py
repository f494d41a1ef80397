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
    hint = "it is called as my_step(x): broadcast from rank 0, times rank + 1, all-reduce, times 2; returns the result"
    for rank, seen in enumerate(on_ranks(ranks, _look_at_gate, attempt, hint=hint)):
        where = f"rank {rank}: "
        if seen["eager"] != seen["right"]:
            hint = f"{seen['right']} is right: the sum over the ranks of rank 0's numbers times rank + 1, times 2"
            raise Mistake(f"{where}in eager it returns {seen['eager']}", hint)
        for mode, x in seen["left"].items():
            if x != seen["start"]:
                hint = "x is the caller's: let the collective write into a copy"
                raise Mistake(f"{where}{mode}, x was {seen['start']} and is {x} after the call", hint)
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
        if seen["compiled left"] != seen["start"]:
            hint = (
                "compiled too, x is the caller's: use the functional form's result, and do not copy it back"
            )
            raise Mistake(
                f"{where}compiled, x was {seen['start']} and is {seen['compiled left']} after the call", hint
            )
        for case, given in seen["legitimate"].items():
            if given != seen["right"]:
                hint = "refuse only where a gradient would be recorded: x.requires_grad and torch.is_grad_enabled()"
                raise Mistake(f"{where}{case}, no gradient is recorded, and it gives {given}", hint)
    trained = _trained(ranks, attempt)
    # with a derivative of its own the gate cannot change the gradient, and torch 2.11 needs it there
    own_derivative = trained.right and not trained.refused
    if not own_derivative and "all_reduce" in seen["gated"] and "all_reduce" in seen["traces"]:
        hint = "this torch traces the plain dist.all_reduce, and rewrites it itself: leave its gate out"
        raise Mistake("compiled, it takes the functional all_reduce", hint)
    if not trained.right:
        raise Mistake(
            f"with a gradient: {trained}",
            "for inference: where x.requires_grad under grad mode, raise an error, eager and compiled; or write the "
            "derivative of a replicated loss, or of the sum of the ranks' losses",
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
                x = start()
                found["compiled"], found["compiled left"] = compiled(x).tolist(), x.tolist()
        except Exception as error:
            if type(error).__name__ != "Unsupported":
                raise
            return str(error).splitlines()[0]
        return ""

    def names(call: Callable[[], Any]) -> list[str]:
        return [
            n.partition("::")[2].rstrip("_") for n in operations(call) if n.startswith("_c10d_functional")
        ]

    n = me.world_size
    found: dict[str, Any] = {"right": [1.0 * n * (n + 1)] * 2, "compiled": [], "start": start().tolist()}
    with torch.no_grad():
        found["traces"] = [name for name, function in PLAIN.items() if not refused(function)]
        x = start()
        found["eager"] = (attempt(x) * 1).tolist()
        found["left"] = {"in eager": x.tolist()}
        x = start()
        found["functional"] = names(lambda: attempt(x))
        found["refused"] = refused(attempt)
        with (
            mock.patch.object(torch.compiler, "is_compiling", lambda: True),
            mock.patch.object(torch.compiler, "is_dynamo_compiling", lambda: True),
        ):
            found["gated"] = [name for name in names(lambda: attempt(x)) if name in PLAIN]
    found["legitimate"] = {} if found["refused"] else _legitimate(attempt, start)
    return found


def _legitimate(attempt: Attempt, start: Callable[[], Any]) -> dict[str, Any]:
    """On a rank: what inference gives, in eager and compiled, where a careless refusal would raise."""
    given: dict[str, Any] = {}
    for case, grad_mode, requires_grad in (
        ("under no_grad, where x.requires_grad", False, True),
        ("in grad mode, where x needs no gradient", True, False),
    ):
        for mode in ("eager", "compiled"):
            dynamo_reset()
            step = (
                torch.compile(own(attempt), fullgraph=True, backend="eager")
                if mode == "compiled"
                else attempt
            )
            x = start().requires_grad_(requires_grad)
            try:
                with torch.set_grad_enabled(grad_mode):
                    given[f"{mode}, {case}"] = step(x).tolist()
            except Exception as error:
                given[f"{mode}, {case}"] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    return given


@dataclass(frozen=True)
class _Trained:
    """What a step does with a gradient, by mode: 'refused', or the gradients of rank 0, rank 1, ..."""

    found: dict[str, str | list[Any]]
    world_size: int

    @property
    def right(self) -> bool:
        """Whether no mode loses a gradient in silence: both refuse, or have those of one process.

        The result is n (n + 1) times rank 0's numbers. The loss is its sum, replicated or summed over the ranks.
        """
        n = self.world_size
        answers = [[[1.0 * n * (n + 1) * losses] * 2, *[[0.0] * 2] * (n - 1)] for losses in (1, n)]
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
        "for inference: the same numbers in eager and compiled, x as it was, and an error only where a gradient "
        "would be lost",
        "in eager, no functional operation",
        "compiled, one graph, and no gate around a call that this torch traces as it is",
    ),
    _judge_gate,
)
