"""Lesson 07: functions whose real stream graphs are judged, and a choice of what to offload."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from labkit import torch_compat
from labkit.lessons.compiled_streams.captured import Replay, _tried
from labkit.lessons.compiled_streams.offload import Rates, _offloaded, step
from labkit.lessons.compiled_streams.shipped import SINCE
from labkit.lessons.shared.streams import StreamGraph, simulate
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["BESIDE", "CHOOSE", "MUTATED"]

LAYERS, WIDTH, TOKENS = 6, 2048, 32768
SLOWER, SAVED = 0.02, 0.10
RATES = Rates(tflops=400.0, memory_gbytes=3000.0, link_gbytes=100.0)
VARIANT = "own stream, late wait, prefetch"
GIVEN = [0.5, 1.0, 2.0, 3.0]  # different numbers, of which none is its own double
LATE_S = 0.05  # by which one kernel after another is late
TIMEOUT_S = 60.0  # of a child: its work takes two seconds


def judge_beside(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """sin and cos of one value on two streams, one of them a side stream: no race in any way the graph is left."""
    graph, runs = _tried_out(attempt, "it is called as my_streams(x, side)")
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
    if not _all_close(_returned(runs), [math.sin(2 * x) + math.cos(2 * x) for x in GIVEN]):
        raise Mistake("no race, and other numbers", "return sin(x * 2) + cos(x * 2)")
    say(f"sin on {on['sin']!r}, cos on {on['cos']!r}, no race, right numbers")


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


def judge_choose(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Which layers' activations to offload: enough memory, little time, by the model on the real passes' graphs."""
    hint = "it is called as my_choice(layers) and returns a list of layers, counted from 0"
    chosen = on_ranks(ranks, attempt, LAYERS, only=0, hint=hint, timeout=30)[0]
    if not isinstance(chosen, (list, tuple, set, range)) or not all(isinstance(i, int) for i in chosen):
        raise Mistake(f"it returns {chosen!r}", hint)
    layers = sorted(set(chosen))
    if wrong := [i for i in layers if i not in range(LAYERS)]:
        raise Mistake(f"there is no layer {wrong[0]}", f"there are layers 0 to {LAYERS - 1}")
    graphs = _child(_offloaded, ["none", VARIANT], LAYERS, WIDTH, TOKENS, layers, RATES)
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


def _child(look: Callable[..., Any], *given: Any, hint: str = "") -> Any:
    """What `look` returns in a child process of its own, which is ended whatever happens."""
    if not torch_compat.has_stream_graphs():
        raise Mistake(
            f"this torch compiles no streams, so nothing can be checked: it takes torch {SINCE} or later"
        )
    with Ranks(1, "cpu", "gloo", quiet=True) as child:
        return on_ranks(child, look, *given, hint=hint, timeout=TIMEOUT_S)[0]


def _tried_out(attempt: Attempt, hint: str) -> tuple[StreamGraph, list[Replay]]:
    """The forward graph of an attempt and its runs on threads. Raises Mistake where it does not compile."""
    if "NotImplementedError" in getattr(getattr(attempt, "__code__", None), "co_names", ()):
        raise Mistake("there is nothing to check yet: write the body of the function first")
    found, runs = _child(_tried, attempt, (torch.tensor(GIVEN),), 1, LATE_S, hint=hint)
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
