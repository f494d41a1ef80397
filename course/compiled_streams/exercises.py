"""Lesson 07: a function whose real stream graph is judged, and a pass that schedules what is offloaded."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from course.compiled_streams.offload import NEEDED, OffloadGraphs, Rates, _traced, model_times, trace
from course.compiled_streams.shipped import SINCE
from course.compiled_streams.threads import Replay, tried
from course.shared.program import choose
from course.shared.streams import StreamGraph
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["mutated", "schedule"]

LAYERS = 4
SLOWER, SAVED = 4, 8  # per cent
KEPT, AT_ONCE = "kept", "waits at once"  # ways of the program
GIVEN = [0.5, 1.0, 2.0, 3.0]  # different numbers, of which none is its own double
LATE_S = 0.05  # by which one kernel after another is late
TIMEOUT_S = 60.0  # of a child: its work takes two seconds


def judge_mutated(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """An input is doubled in place and the side stream needs the doubled values: compiles, ordered, right.

    Judged by what x holds and what is returned when the real graph runs with one thread a stream, each kernel late
    in turn, and by where the write of x stands among the events.
    """
    graph, runs = _tried_out(attempt, "it is called as my_update(x, side)")
    doubled = [2 * x for x in GIVEN]
    kernels = [n for n in graph.nodes if n.word == "kernel"]
    x = next(n.name for n in graph.nodes if n.word == "input")
    writes = [n for n in kernels if x in n.writes]
    held = runs[0].inputs[0]
    if not writes:
        raise Mistake("the caller's x stays as it was", "write back into x: x.copy_(...) at the end does it")
    if _all_close([held], GIVEN):
        raise Mistake("x is written, and holds what it held", "what goes into x has to be the doubled values")
    if races := graph.races():
        raise Mistake(f"a race, {races[0].text}", races[0].remedy)
    if not all(_all_close([run.inputs[0]], doubled) for run in runs):
        raise Mistake(
            f"after the call x holds {held}, of {GIVEN}", "the caller's x is doubled, whatever is late"
        )
    if not [n for n in kernels if n.stream != "default" and n not in writes]:
        raise Mistake("nothing runs on the side stream", "compute the result in `with side:`")
    if not _all_close(_returned(runs), [2 * x + 1 for x in GIVEN]):
        raise Mistake("it compiles, and gives other numbers", "return 2 * x + 1 of the x that came in")
    places = {n.name: i for i, n in enumerate(graph.nodes)}
    handed = [places[n.name] for n in graph.nodes if n.word in ("record_event", "wait_stream")]
    behind = places[writes[-1].name] - max(handed, default=0)
    if behind < 0:
        raise Mistake(
            "an event is recorded behind the write of x",
            "nothing in the call needs the written x: record the event behind what the side stream reads",
        )
    say(
        f"it compiles; x holds {held} after the call, written {behind} nodes behind what the side stream waits for; "
        "right numbers, whichever kernel is late"
    )


def judge_schedule(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """A pass that moves the waits and the reloads of an offloaded step: within a budget of memory, nearly as fast.

    Judged by the model on the graphs that the attempt leaves; on a GPU, the graphs are run as well.
    """
    hint = "it is called as my_schedule(forward, backward) with two torch.fx.Graphs, and moves their nodes"
    _written(attempt)
    kept = _kept()
    try:
        graphs = _child(_traced, _program(), _shape(), [AT_ONCE], attempt, Rates(), hint=hint)
    except Mistake as mistake:
        if "used before it has been defined" in str(mistake):
            raise Mistake(
                "a value is used before it is made",
                "a wait stays before the users of what it waits for, a reload behind the graph's inputs",
            ) from None
        raise
    words = [n.word for n in (*graphs[AT_ONCE].forward, *graphs[AT_ONCE].backward)]
    if {word: words.count(word) for word in ("offload", "reload", "wait")} != _moves():
        raise Mistake("a copy or a wait is gone", "move nodes, and leave all of them in their graphs")
    found = model_times({KEPT: kept, AT_ONCE: graphs[AT_ONCE]}).loc[AT_ONCE]
    said = f"modelled: {found['slower_percent']:.1f} % slower, {found['saved_percent']:.1f} % less memory"
    if found["saved_percent"] < SAVED:
        raise Mistake(
            said,
            "memory comes back at a wait, and is taken at a reload: wait a few products behind the copy, not at the "
            "end, and reload a few products ahead, not at the start",
        )
    if found["slower_percent"] > SLOWER:
        raise Mistake(
            said,
            "the forward still stands while it copies: put products between a copy and its wait"
            if _is_at_once(graphs[AT_ONCE])
            else "the backward still stands while it copies: start a reload some products before its wait",
        )
    say(said)
    if ranks.device == "cuda":
        _on_gpu(attempt, ranks, say)


def _is_at_once(graphs: OffloadGraphs) -> bool:
    """Whether no product stands between an asynchronous copy of the forward pass and its wait."""
    order = [n.word for n in graphs.forward if n.word in ("offload", "wait") or n.flops]
    return ("offload", "kernel") not in itertools.pairwise(order)


@functools.cache
def _kept() -> OffloadGraphs:
    return trace(_shape(), [KEPT])[KEPT]


def _program() -> Any:
    return choose("compiled_streams", None, NEEDED)


def _shape() -> Any:
    return _program().code.Shape(layers=LAYERS)


def _moves() -> dict[str, int]:
    """How many copies and waits the pass of torch puts into the two graphs: all sums of the layers but the last."""
    copies = 2 * LAYERS - 1
    return {"offload": copies, "reload": copies, "wait": 2 * copies}


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


def _child(look: Callable[..., Any], *given: Any, hint: str = "") -> Any:
    """What `look` returns in a child process of its own, which is ended whatever happens."""
    if not torch_compat.has_stream_graphs():
        raise Mistake(
            f"this torch compiles no streams, so nothing can be checked: it takes torch {SINCE} or later"
        )
    with Ranks(1, "cpu", "gloo", quiet=True) as child:
        return on_ranks(child, look, *given, hint=hint, timeout=TIMEOUT_S)[0]


def _written(attempt: Attempt) -> None:
    if "NotImplementedError" in getattr(getattr(attempt, "__code__", None), "co_names", ()):
        raise Mistake("there is nothing to check yet: write the body of the function first")


def _tried_out(attempt: Attempt, hint: str) -> tuple[StreamGraph, list[Replay]]:
    """The forward graph of an attempt and its runs on threads. Raises Mistake where it does not compile."""
    _written(attempt)
    found, runs = _child(tried, attempt, (torch.tensor(GIVEN),), 1, LATE_S, hint=hint)
    if "event was recorded" in found.error:
        raise Mistake(
            found.error,
            "the write into x happens behind everything else: compute a new tensor, hand that over, and write x last",
        )
    if "BackendCompilerFailed" in found.error:
        raise Mistake(
            f"not compiled: {found.error}",
            "an operator that waits stands before the write into x, which this torch cannot compile: write x back "
            "first, and leave the last wait to the caller",
        )
    if found.error or not found.forward:
        raise Mistake(f"not compiled: {found.error}", hint)
    return found.forward[0], runs


def _returned(runs: list[Replay]) -> list[Any]:
    """The last value that the graph returned, in order and on threads, of every run."""
    return [values[-1] if values else None for run in runs for values in (run.expected, run.values)]


def _all_close(values: list[Any], right: list[float]) -> bool:
    return all(
        isinstance(value, list)
        and len(value) == len(right)
        and all(
            isinstance(v, float) and math.isclose(v, r, rel_tol=1e-5)
            for v, r in zip(value, right, strict=True)
        )
        for value in values
    )


mutated = Exercise(
    "compiled_streams.mutated",
    "hand over a changed input",
    "medium",
    10,
    (
        "it compiles",
        "the caller's `x` is doubled",
        "the side stream computes the doubled x, plus 1",
        "no race",
    ),
    judge_mutated,
)
schedule = Exercise(
    "compiled_streams.schedule",
    "offload within a budget",
    "hard",
    20,
    (
        f"by the model at least {SAVED} % less memory at the peak",
        f"at most {SLOWER} % slower",
        "every copy and every wait still there",
        "on a GPU, less memory measured, and the same gradients",
    ),
    judge_schedule,
)
