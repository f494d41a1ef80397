"""Lesson 04, `cliff.layer`: a gated MLP, split over the ranks, that stays in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from oddrank.record import record

from course.cliff.exercises.loop import NO_NUMBERS, apart
from course.shared.variants import with_own_code
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks, on_three_too

__all__ = ["layer"]

DIM, HIDDEN, TOKENS = 8, 24, 3
CLOSE = 1e-4
CALLED = (
    "it is called as MyMLP(gate, up, down, rank, world_size), and then with x of shape (..., dim):"
    " (batch, tokens, dim) or (tokens, dim)"
)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The whole layer's numbers from a rank's share of the weights, with one all-reduce, in one region."""
    on_three_too(_judge_eager)(attempt, ranks, say)
    _judge_compiled(list(on_ranks(ranks, _compile, attempt, hint=CALLED)), say)


def _judge_eager(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    seen = on_ranks(ranks, _look, attempt, hint=CALLED)
    if not all(found["module"] for found in seen):
        raise Mistake("it is no nn.Module", "derive the class from nn.Module, so that its weights are found")
    kept = f"keeps {seen[0]['kept']} of {seen[0]['whole']} weights"
    if any(found["kept"] * len(seen) != found["whole"] for found in seen):
        raise Mistake(
            f"rank 0 {kept}",
            f"a rank keeps one part in {len(seen)} of each matrix, as parameters: a copy of a chunk, not the whole",
        )
    if any(found["beside"] for found in seen):
        raise Mistake(
            f"rank 0 {kept}, and {seen[0]['beside']} bytes of tensors beside them",
            "beside its shares the layer needs no tensor: let the whole matrices go",
        )
    if any(found["held"] > found["bytes"] for found in seen):
        raise Mistake(
            f"rank 0 {kept}, {seen[0]['bytes']} bytes, out of memory of {seen[0]['held']} bytes",
            "a chunk is a view, and keeps the whole matrix in memory: clone it",
        )
    worst = max(found["error"] for found in seen)
    eager = f"{kept}, largest error {worst:.1e}, {_many(seen[0]['eager'], 'collective')} a call"
    if not worst <= CLOSE and not seen[0]["eager"]:
        raise Mistake(eager, "each rank has a part of every sum: add the parts up over the ranks")
    if not worst <= CLOSE:
        raise Mistake(
            eager,
            "split gate and up by rows (dim 0) alike, and down by columns (dim 1): silu needs whole sums before it"
            if all(found["finite"] for found in seen)
            else NO_NUMBERS,
        )
    if any(found["changed"] for found in seen):
        raise Mistake(eager, "it changes the tensor that it is given")
    if seen[0]["eager"] != 1:
        raise Mistake(
            eager, "once is enough: split gate and up so that nothing has to be added up before `down`"
        )
    say(eager)


def _judge_compiled(seen: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    for rank, found in enumerate(seen):
        entered = f"{_many(found['regions'], 'region')}, {_many(found['breaks'], 'break')} a forward"
        compiled = f"compiled, rank {rank}: {entered}"
        if found["regions"] != 1 or found["breaks"]:
            raise Mistake(
                compiled, "the compiler loses sight of something: use the all-reduce that it can trace"
            )
        compiled += f", {_many(found['collectives'], 'collective')}, largest error {found['error']:.1e}"
        if not found["error"] <= CLOSE or found["collectives"] != 1:
            raise Mistake(
                compiled,
                "compiled, it does not do what it does in eager: use what the all-reduce returns, in both modes",
            )
    say("compiled: 1 region, 0 breaks, 1 collective in it, on every rank")


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _given() -> tuple[list[Any], Any]:
    """The three matrices and x, the same on every rank."""
    me = here()
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(s, generator=generator) for s in ((HIDDEN, DIM), (HIDDEN, DIM), (DIM, HIDDEN))]
    x = torch.randn(2, TOKENS, DIM, generator=generator).to(me.device)
    return [weight.to(me.device) for weight in made], x


def _made(attempt: Attempt, weights: list[Any]) -> Any:
    me = here()
    layer = attempt(*(weight.clone() for weight in weights), me.rank, me.world_size)
    return with_own_code(layer.to(me.device)) if isinstance(layer, torch.nn.Module) else None


def _whole(weights: list[Any], x: Any) -> Any:
    gate, up, down = weights
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _inside(value: Any) -> list[Any]:
    """The tensors in a value, also in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _inside(part)]


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: the attempt against the whole layer, in eager."""
    weights, x = _given()
    layer = _made(attempt, weights)
    if layer is None:
        return {"module": False}
    given, expected = x.clone(), _whole(weights, x)
    with torch.no_grad():
        with record() as rec:
            y = layer(given)
        error = max(apart(y, expected), apart(layer(x[0].clone()), expected[0]))
    tensors = [*layer.parameters(), *layer.buffers()]
    known = {t.untyped_storage().data_ptr() for t in tensors}
    others = [t for m in layer.modules() for t in _inside(vars(m))]
    return {
        "module": True,
        "kept": sum(p.numel() for p in tensors),
        "bytes": sum(p.nbytes for p in tensors),
        "held": sum({s.data_ptr(): s.nbytes() for s in map(torch.Tensor.untyped_storage, tensors)}.values()),
        "beside": sum(t.nbytes for t in others if t.untyped_storage().data_ptr() not in known),
        "whole": sum(weight.numel() for weight in weights),
        "error": error,
        "finite": bool(y.isfinite().all()),
        "changed": not torch.equal(given, x),
        "eager": int(rec.counts[0].collectives or 0),
    }


def _compile(attempt: Attempt) -> dict[str, Any]:
    """On a rank: what is compiled of the attempt. Counts are per forward."""
    weights, x = _given()
    right = _whole(weights, x)
    compiled = torch.compile(_made(attempt, weights))
    with torch.no_grad():
        compiled(x.clone())
        with record() as rec, rec.forward():
            y = compiled(x.clone())
    counts = rec.counts[0]
    return {
        "regions": counts.regions,
        "breaks": counts.breaks,
        "collectives": counts.collectives,
        "error": apart(y, right),
    }


layer = Exercise(
    "cliff.layer",
    "a layer in one graph",
    "medium",
    15,
    (
        "the numbers of the whole layer, from this rank's share of each matrix",
        "one collective a call",
        "compiled, 1 region and 0 breaks a forward, on every rank",
    ),
    judge,
    takes="class",
)
