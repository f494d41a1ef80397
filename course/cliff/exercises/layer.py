"""Lesson 04, `cliff.layer`: a gated MLP, split over the ranks, that stays in one graph."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from oddrank.record import record

from course.cliff.exercises.table import NO_NUMBERS, apart, counted, judge_by, seen
from course.shared.variants import with_own_code
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, on_ranks, on_three_too

__all__ = ["layer"]

DIM, HIDDEN, CLOSE = 8, 24, 1e-4
CALLED = (
    "it is called as MyMLP(gate, up, down, rank, world_size), and then with x of shape (..., dim):"
    " (batch, tokens, dim) or (tokens, dim)"
)


def whole(weights: list[Any], x: Any) -> Any:
    """The oracle: the layer on one process."""
    gate, up, down = weights
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The whole layer's numbers from a rank's share of the weights, with one all-reduce, in one region."""
    on_three_too(lambda mine, some, tell: judge_by(on_ranks(some, _eager, mine, hint=CALLED), tell))(
        attempt, ranks, say
    )
    judge_by(on_ranks(ranks, _compiled, attempt, hint=CALLED), say)


def _drawn() -> tuple[list[Any], list[Any]]:
    """The three matrices, and inputs of three shapes, the same on every rank; one lies in memory in another order."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((HIDDEN, DIM), (HIDDEN, DIM), (DIM, HIDDEN), (2, 3, DIM), (5, DIM), (1, DIM))
    *weights, x, tokens, one = (torch.randn(s, generator=generator).to(here().device) for s in shapes)
    return weights, [x, x.transpose(0, 1), tokens, one]


def _made(attempt: Attempt, weights: list[Any]) -> tuple[Any, bool]:
    """The layer, None if it is no module, and whether a matrix that it was given is still held, say by a closure."""
    me = here()
    given = [weight.clone() for weight in weights]
    alive = [weakref.ref(weight) for weight in given]
    made = attempt(*given, me.rank, me.world_size)
    del given
    gc.collect()
    kept = any(one() is not None for one in alive)
    return with_own_code(made.to(me.device)) if isinstance(made, torch.nn.Module) else None, kept


def _inside(value: Any) -> list[Any]:
    """The tensors in a value, also in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _inside(part)]


def _eager(attempt: Attempt) -> Any:
    """On a rank: the attempt beside the whole layer, in eager, and what it keeps."""
    weights, inputs = _drawn()
    made, whole_kept = _made(attempt, weights)
    if made is None:
        return seen(
            "it is no nn.Module", {"derive the class from nn.Module, so that its weights are found": True}
        )
    error, changed, finite, calls = 0.0, False, True, set()
    for x in inputs:
        given = x.clone()
        with torch.no_grad(), record() as rec:
            y = made(given)
        calls.add(int(rec.counts.dicts()[0]["collectives"] or 0))
        error = max(error, apart(y, whole(weights, x)))
        finite &= bool(y.isfinite().all())
        changed |= not torch.equal(given, x)
    tensors, size = [*made.parameters(), *made.buffers()], here().world_size
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    others = [t for m in made.modules() for t in _inside(vars(m))]
    kept, every = (sum(t.numel() for t in some) for some in (tensors, weights))
    mistakes = {
        f"a rank keeps one part in {size} of each matrix, as parameters or buffers: no more, and no less": kept
        * size
        != every,
        "a chunk is a view, and keeps the whole matrix in memory": sum(memory.values())
        > sum(t.nbytes for t in tensors),
        "beside its shares the layer needs no tensor: let the whole matrices go": whole_kept
        or any(t.untyped_storage().data_ptr() not in memory for t in others),
        NO_NUMBERS: not finite,
        "each rank has a part of every sum: add the parts up over the ranks": not error <= CLOSE
        and calls == {0},
        "look at how each matrix is split: silu needs whole sums before it, and gate and up the same part": not error
        <= CLOSE,
        "it changes the tensor that it is given": changed,
        "once is enough: split gate and up so that nothing has to be added up before `down`": calls != {1},
    }
    said = f"keeps {kept} of {every} weights, largest error {error:.1e}"
    return seen(f"{said}, {', '.join(map(str, calls))} collectives a call", mistakes)


def _compiled(attempt: Attempt) -> Any:
    """On a rank: what is compiled of the attempt. Counts are per forward."""
    weights, (x, *_) = _drawn()
    compiled = torch.compile(_made(attempt, weights)[0])
    with torch.no_grad():
        compiled(x.clone())
        with record() as rec, rec.forward():
            y = compiled(x.clone())
    (counts,) = rec.counts.dicts()
    wrong = not apart(y, whole(weights, x)) <= CLOSE or counts["collectives"] != 1
    lost = "the compiler loses sight of something: use the all-reduce that it can trace"
    other = "compiled, it does not do what it does in eager: use what the all-reduce returns, in both modes"
    return seen(
        f"{counted(counts)} a forward", {lost: counts["breaks"] or counts["regions"] != 1, other: wrong}
    )


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
