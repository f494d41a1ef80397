"""Lesson 07b: a pass that schedules what is offloaded."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from course.offload.offload import NEEDED, OffloadGraphs, Rates, _traced, model_times, step, trace
from course.shared.program import choose
from course.shared.streams import simulate
from course.shared.streams.judging import in_its_own_child, written
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["schedule"]

LAYERS = 4
SLOWER, SAVED = 4, 8  # per cent
KEPT, AT_ONCE = "kept", "waits at once"  # ways of the program
CHANGED = "the nodes were changed, and not only moved"


def judge_schedule(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """A pass that moves the waits and the reloads of an offloaded step: within a budget of memory, nearly as fast.

    Judged by the model on the graphs that the attempt leaves; on a GPU, the graphs are run as well.
    """
    hint = "it is called as my_schedule(forward, backward) with two torch.fx.Graphs, and moves their nodes"
    written(attempt)
    kept = _kept()
    try:
        graphs = in_its_own_child(
            _traced, _program(), _shape(), [AT_ONCE], _MovesOnly(attempt), Rates(), hint=hint
        )
    except Mistake as mistake:
        if "used before it has been defined" in str(mistake):
            raise Mistake(
                "a value is used before it is made",
                "a wait stays before the users of what it waits for, a reload after the graph's inputs",
            ) from None
        if CHANGED in str(mistake):
            raise Mistake(
                "a node is gone, is new, or is not what it was",
                "move nodes, and leave all of them, their inputs and their metadata as they are",
            ) from None
        raise
    if races := simulate(step(graphs[AT_ONCE])).races:
        raise Mistake(f"a race, {races[0].text}", "a copy's result is used only after its wait")
    found = model_times({KEPT: kept, AT_ONCE: graphs[AT_ONCE]}).loc[AT_ONCE]
    said = f"modelled: {found['slower_percent']:.1f} % slower, {found['saved_percent']:.1f} % less memory"
    if found["saved_percent"] < SAVED:
        raise Mistake(
            said,
            "memory comes back at a wait, and is taken at a reload: wait a few matmuls after the copy, not at the "
            "end, and reload a few matmuls ahead, not at the start",
        )
    if found["slower_percent"] > SLOWER:
        raise Mistake(
            said,
            "the forward pass still stalls while it copies: put matmuls between a copy and its wait"
            if _is_at_once(graphs[AT_ONCE])
            else "the backward pass still stalls while it copies: start a reload some matmuls before its wait",
        )
    say(said)
    if ranks.device == "cuda":
        _on_gpu(attempt, ranks, say)


class _MovesOnly:
    """An attempt, and a look at its graphs before and after it: nodes may move, and nothing else."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def __call__(self, forward: Any, backward: Any) -> Any:
        before = [self._said(graph) for graph in (forward, backward)]
        found = self.attempt(forward, backward)
        if before != [self._said(graph) for graph in (forward, backward)]:
            raise ValueError(CHANGED)
        return found

    @staticmethod
    def _said(graph: Any) -> dict[str, tuple[str, ...]]:
        """Of each node what it computes, from what, and the shape that the model reads."""
        return {
            n.name: (str(n.target), str(n.args), str(n.kwargs), _described(n.meta.get("val")))
            for n in graph.nodes
        }


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return str([_described(one) for one in value]) if isinstance(value, (list, tuple)) else ""


def _is_at_once(graphs: OffloadGraphs) -> bool:
    """Whether no matmul stands between an asynchronous copy of the forward pass and its wait."""
    order = [n.word for n in graphs.forward if n.word in ("offload", "wait") or n.flops]
    return ("offload", "kernel") not in itertools.pairwise(order)


@functools.cache
def _kept() -> OffloadGraphs:
    return trace(_shape(), [KEPT])[KEPT]


def _program() -> Any:
    return choose("offload", None, NEEDED)


def _shape() -> Any:
    return _program().code.Shape(layers=LAYERS)


def _on_gpu(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Run the step on a GPU, kept and with the attempt's order: less memory at the peak, the same gradients."""
    given = _program(), _shape()
    kept = on_ranks(ranks, _run_on_gpu, *given, KEPT, None, only=0, timeout=300)[0]
    found = on_ranks(ranks, _run_on_gpu, *given, AT_ONCE, attempt, only=0, timeout=300)[0]
    slower, saved = 100 * (found[0] / kept[0] - 1), 100 * (1 - found[1] / kept[1])
    said = f"measured: {slower:.1f} % slower, {saved:.1f} % less memory"
    if not math.isclose(found[2], kept[2], rel_tol=1e-2):
        raise Mistake(f"{said}, and other gradients", "a value is read before its wait")
    if found[1] >= kept[1]:
        raise Mistake(said, "on the GPU the peak is no lower: wait earlier, or reload later")
    say(said)


def _run_on_gpu(code: Any, shape: Any, way: str, schedule: Any) -> tuple[float, float, float]:
    """On a rank with a GPU: ms of a step (median of five), MiB at its peak, and the norm of the gradients."""
    torch_compat.dynamo_reset()
    torch.manual_seed(0)
    model = code.code.Model(shape).to("cuda", torch.bfloat16)
    x = torch.randn(shape.batch, shape.sequence, shape.width, device="cuda", dtype=torch.bfloat16)
    backend = torch_compat.aot_backend([], [], min_cut=True, schedule=schedule)
    seconds = []
    with torch_compat.patched("functorch.config", **code.code.WAYS[way]), torch_compat.pinned_pool():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for warm in (True, True, *[False] * 5):
            model.zero_grad()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            compiled(x).backward()
            torch.cuda.synchronize()
            seconds += [] if warm else [time.perf_counter() - began]
    norm = sum(float(p.grad.float().square().sum()) for p in model.parameters() if p.grad is not None) ** 0.5
    return statistics.median(seconds) * 1e3, torch.cuda.max_memory_allocated() / 2**20, norm


schedule = Exercise(
    "offload.schedule",
    "offload within a budget",
    "hard",
    12,
    (
        f"by the model at least {SAVED} % less memory at the peak",
        f"at most {SLOWER} % slower",
        "nodes are moved and not changed, and no race",
        "on a GPU, less memory measured, and the same gradients",
    ),
    judge_schedule,
)
