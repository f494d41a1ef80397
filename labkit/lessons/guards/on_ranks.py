"""What runs in each rank for the guard sweep: one dimension walked through its values, and what the steps cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit import torch_compat
from labkit.graphs.compile_log import install
from labkit.graphs.names import Names
from labkit.graphs.reasons import clean, limit, recompile
from labkit.lessons.shared.dimensions import BATCH, LENGTH, POLICIES, Call, Dimension, Layer, _input
from labkit.lessons.shared.variants import with_own_code
from labkit.timing import interleave

__all__ = ["COMPILED", "DYNAMIC", "ERROR", "FIRST", "GAVE_UP", "REUSED", "costs", "walk"]

FIRST, REUSED, COMPILED = "first compile", "reused", "recompiled"
DYNAMIC, GAVE_UP, ERROR = "went dynamic", "gave up", "error"
CALLS = 20  # of which a sample is the mean


def walk(layer: Layer, dimension: Dimension, policy: str, compiler: str) -> list[dict[str, Any]]:
    """Call a freshly compiled layer once for each value, and say for each call what the compiler did.

    A call was `reused` where compiled code ran and nothing was compiled, `went dynamic` where a recompile's graph has a
    symbol in the place of a value, and `gave up` where no compiled code ran. `seconds` is the call's
    time, compile included; `right` compares the output with the layer's own in eager.
    """
    torch_compat.dynamo_reset()
    module, made = layer(), []
    backend = torch_compat.compile_backend(compiler)

    def keep(graph: Any, inputs: Any) -> Any:
        made.append(torch_compat.symbolic(graph))
        return backend(graph, inputs)

    options, marking = POLICIES[policy]
    compiled = torch.compile(module, backend=keep, **options)
    entered: list[Any] = []
    stop, rows = torch_compat.on_region_entry(lambda code: entered.append(code)), []
    try:
        for step, (value, label) in enumerate(zip(dimension.values, dimension.labels(), strict=True)):
            call = dimension.vary(module, value)
            if marking and dimension.axis is not None:
                torch_compat.mark(call.x, dimension.axis, marking)
            before, seen = len(made), {id(c) for c in install().known()}
            entered.clear()
            began = time.perf_counter()
            try:
                with torch_compat.quiet_dynamo():  # its warning at the limit is a row here
                    y, error = _make(compiled, call), ""
            except Exception as failure:  # a refusal of the compiler's is a result here
                y, error = None, _said(failure)
            seconds = time.perf_counter() - began
            new = [c for c in install().known() if id(c) not in seen]
            reason = ""
            for c in new:
                again = recompile(c.reasons, "", Names()) if c.reasons else None
                why = limit(c.failure, "") if c.skipped else again
                reason = why.reason if why else reason
            rows.append(
                {
                    "step": step, "value": label, "seconds": seconds, "graphs": len(made), "reason": reason,
                    "breaks": sum(c.broke for c in new),
                    "state": ERROR if error else _state(bool(entered), made[:before], made[before:]),
                    "error": error, "right": None if y is None else _right(y, _make(module, call)),
                }
            )  # fmt: skip
    finally:
        stop()
        torch_compat.dynamo_reset()
    return rows


def _state(entered: bool, before: Sequence[bool], new: Sequence[bool]) -> str:
    if not entered:
        return GAVE_UP
    if not new:
        return REUSED
    if not before:
        return FIRST
    return DYNAMIC if any(new) else COMPILED


def _make(module: Callable[..., Any], call: Call) -> Any:
    with (call.context or torch.no_grad)():
        found = module(call.x, call.times, call.gain, call.centre, call.kind)
        return found + 0  # which waits until it has arrived


def _right(y: Any, expected: Any) -> bool:
    return bool(torch.allclose(y.detach().float(), expected.detach().float(), rtol=2e-2, atol=2e-2))


def _said(failure: Exception) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return clean(f"{type(failure).__name__}: {lines[0] if lines else ''}")[:300]


def costs(layer: Layer, compiler: str, compiles: int, rounds: int) -> dict[str, Any]:
    """Seconds of what a step can cost, for one compiler, samples in the order of the rounds.

    `compiles` times from nothing: a first call, and one with another length, which goes dynamic. Then `rounds` of four
    kinds of call, interleaved, each the mean of 20: eager; reused with one version, and with as many as the limit
    allows; and given up. These are compiled without Inductor, so that what they take beyond eager is Dynamo's own:
    look-up, guards, entry.
    """
    short, long = _input(BATCH, LENGTH), _input(BATCH, LENGTH + 8)
    found: dict[str, list[float]] = {"first call": [], "goes dynamic": []}
    with torch.no_grad():
        # what a process pays once, whatever it compiles, is not this layer's: imports, the search for a C++ compiler
        torch.compile(lambda x: x.sin() + 1, backend=compiler)(short)
    with torch.no_grad(), torch_compat.no_compile_caches(), torch_compat.quiet_dynamo():
        for _ in range(compiles):
            torch_compat.dynamo_reset()
            run = torch.compile(layer(), backend=compiler)
            for kind, x in zip(found, (short, long), strict=True):
                dist.barrier()
                began = time.perf_counter()
                run(x) + 0
                found[kind].append(time.perf_counter() - began)
        if not rounds:
            return {"compiles": found, "calls": {}}
        torch_compat.dynamo_reset()
        most = int(torch_compat.setting("dynamo.config.recompile_limit"))
        x, eager = short, layer()
        # compiled without Inductor, each with code, and so with versions, of its own
        three: list[Any] = [torch.compile(with_own_code(layer()), backend="eager") for _ in range(3)]
        one, many, given_up = three
        for repeats in range(1, most + 1):
            many.repeats = repeats
            many(x)
            given_up.repeats = repeats + 1
            given_up(x)
        # the same work for all: of `given_up` the limit's worth of versions is there, and none of them is this one's
        many.repeats = given_up.repeats = 1

        def often(run: Callable[..., Any]) -> Callable[[], None]:
            def sample() -> None:
                for _ in range(CALLS):
                    run(x) + 0

            return sample

        kinds = {
            "eager": eager,
            "reused, 1 version": one,
            f"reused, {most} versions": many,
            "gave up": given_up,
        }
        calls = {name: often(run) for name, run in kinds.items()}
        taken = interleave(calls, rounds=rounds, warmup=2, barrier=dist.barrier)
        torch_compat.dynamo_reset()
    each = {name: [s / CALLS for s in m.samples] for name, m in taken.items()}
    return {"compiles": found, "calls": each}
