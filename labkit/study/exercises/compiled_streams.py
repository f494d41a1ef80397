"""Lesson 07: functions whose real stream graphs are judged, and a choice of what to offload."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.ranks import Ranks
from labkit.streams import StreamGraph, simulate
from labkit.streams.captured import _capture, _replay
from labkit.streams.offload import Rates, _offloaded, step
from labkit.streams.ops import StreamError
from labkit.study.exercises.base import Attempt, Exercise, Mistake, on_ranks

__all__ = ["BESIDE", "CHOOSE", "MUTATED"]

LAYERS, WIDTH, TOKENS = 6, 2048, 32768
SLOWER, SAVED = 0.02, 0.10
RATES = Rates(tflops=400.0, memory_gbytes=3000.0, link_gbytes=100.0)
VARIANT = "own stream, late wait, prefetch"


def judge_beside(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """sin and cos of one value on two streams, one of them a side stream: no race in any way the graph is left."""
    x = _ones()
    graph = _graph(attempt, (x,), 1, "it is called as my_streams(x, side)")
    on = {n.target.partition(".")[0]: n.stream for n in graph.nodes if n.word == "kernel"}
    if "sin" not in on or "cos" not in on:
        raise Mistake(f"the graph computes {', '.join(on)}", "compute sin(x * 2) and cos(x * 2) and add them")
    if on["sin"] == on["cos"]:
        raise Mistake(
            f"sin and cos are both on {on['sin']!r}",
            "put one of them into `with side:`: only what stands in the block is on the other stream",
        )
    if races := graph.races():
        raise Mistake(f"a race, {races[0].text}", races[0].remedy)
    if any(n.word.startswith("synchronize") for n in graph.nodes):
        raise Mistake("no race, and the host stands still", "let a stream wait for an event, not the host")
    right = _values(attempt, x)
    if right is None or not all(math.isclose(v, math.sin(2) + math.cos(2), rel_tol=1e-5) for v in right):
        raise Mistake("no race, and other numbers", "return sin(x * 2) + cos(x * 2)")
    say(f"sin on {on['sin']!r}, cos on {on['cos']!r}, no race, right numbers")


def judge_mutated(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """An input is doubled in place and the side stream needs the doubled values: compiles, ordered, right."""
    x = _ones()
    graph = _graph(attempt, (x,), 1, "it is called as my_update(x, side)")
    if not any(n.target.startswith("copy_") for n in graph.nodes):
        raise Mistake("the caller's x stays as it was", "write back into x: x.copy_(...) at the end does it")
    side = [
        n for n in graph.nodes if n.word == "kernel" and n.stream != "default" and "copy_" not in n.target
    ]
    if not side:
        raise Mistake("nothing runs on the side stream", "compute the result in `with side:`")
    if races := graph.races():
        raise Mistake(f"a race, {races[0].text}", races[0].remedy)
    right = _values(attempt, x)
    if right is None or not all(math.isclose(v, 3.0, rel_tol=1e-6) for v in right):
        raise Mistake("it compiles, and gives other numbers", "return 2 * x + 1 of the x that came in")
    say("it compiles, x is written back, the side stream waits for what it reads, right numbers")


def judge_choose(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Which layers' activations to offload: enough memory, little time, by the model on the real passes' graphs."""
    hint = "it is called as my_choice(layers) and returns a list of layers, counted from 0"
    chosen = on_ranks(ranks, attempt, LAYERS, only=0, hint=hint, timeout=30)[0]
    if not isinstance(chosen, (list, tuple, set, range)) or not all(isinstance(i, int) for i in chosen):
        raise Mistake(f"it returns {chosen!r}", hint)
    layers = sorted(set(chosen))
    if wrong := [i for i in layers if i not in range(LAYERS)]:
        raise Mistake(f"there is no layer {wrong[0]}", f"there are layers 0 to {LAYERS - 1}")
    with Ranks(1, "cpu", "gloo", quiet=True) as child:
        graphs = child.run(_offloaded, ["none", VARIANT], LAYERS, WIDTH, TOKENS, layers, RATES)[0]
    none, found = (simulate(step(one, RATES)) for one in graphs.values())
    slower, saved = found.makespan / none.makespan - 1, 1 - found.peak / none.peak
    said = f"{slower:.0%} slower, {saved:.0%} less memory at the peak (model)"
    if saved < SAVED:
        raise Mistake(
            said,
            "a late layer is needed again at once, so its memory is back at the peak: offload an early one"
            if layers
            else "nothing is offloaded: return at least one layer",
        )
    if slower > SLOWER:
        raise Mistake(said, "the link is full: every layer less is a copy less in each direction")
    say(said)


def _ones() -> Any:
    import torch

    return torch.ones(4)


def _graph(attempt: Attempt, tensors: tuple, streams: int, hint: str) -> StreamGraph:
    """The forward graph of an attempt, in a child of its own. Raises Mistake where it does not compile."""
    if "NotImplementedError" in getattr(getattr(attempt, "__code__", None), "co_names", ()):
        raise Mistake("there is nothing to check yet: write the body of the function first")
    with Ranks(1, "cpu", "gloo", quiet=True) as child:
        found = on_ranks(child, _capture, attempt, tensors, streams, False, hint=hint, timeout=120)[0]
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
    return found.forward[0]


def _values(attempt: Attempt, x: Any) -> list[float] | None:
    with Ranks(1, "cpu", "gloo", quiet=True) as child:
        ran = on_ranks(child, _replay, attempt, (x,), 1, {}, timeout=120)[0]
    if isinstance(ran, StreamError):
        raise Mistake(str(ran))
    value = ran.expected[-1] if ran.expected else None
    return value if isinstance(value, list) and ran.right else None


BESIDE = Exercise(
    "compiled_streams.beside",
    "two streams, compiled",
    "easy",
    10,
    (
        "`sin(x * 2)` and `cos(x * 2)` on two streams",
        "no race in the compiled graph",
        "the host never stands still",
        "their sum",
    ),
    judge_beside,
)
MUTATED = Exercise(
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
CHOOSE = Exercise(
    "compiled_streams.choose",
    "what to offload",
    "medium",
    10,
    (f"at least {SAVED:.0%} less memory", f"at most {SLOWER:.0%} slower, by the model"),
    judge_choose,
)
