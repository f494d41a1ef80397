"""What it costs in eager to wrap: functional collectives and DTensors against their plain forms, as a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from labkit import lessons
from labkit.lessons.shared.timed import timed, timing_result
from labkit.lessons.shared.variants import own
from labkit.study.checks import (
    CANNOT_TELL,
    CHANGED,
    Bench,
    Result,
    Seen,
    cannot_tell,
    judging,
    probe,
    verdict,
)
from labkit.timing import interleave, slowest
from labkit.torch_compat import dynamo_reset, functional_op, world_name

cliff = lessons.program("cliff")
CALLS = 50  # calls a sample: one call is a few microseconds
ROUNDS = 40


@probe
def eager_functional(bench: Bench) -> Seen:
    """An all-reduce of 16 by 128 floats over shared memory in eager: in place, of a new copy, unwrapped, functional."""
    made = bench.run(_made, backend="shm")[0]
    found = bench.run(_eager_functional, backend="shm")
    samples = {n: slowest(n, {rank: f[n] for rank, f in found.items()}).samples for n in found[0]}
    label = "shm · cpu"
    parts = {"copy": timed(label, samples, "large in a copy", "large in place")}
    parts["wrapper"] = timed(label, samples, "functional", "unwrapped")
    return {**timed(label, samples, "functional", "in place"), "parts": parts, **made}


def _made() -> Seen:
    x = torch.zeros(16, 128)
    y = cliff.functional(x)
    held = getattr(y, "elem", y)
    y[0, 0].item()  # arrives
    return {"made": {"memory of its own": held.data_ptr() != x.data_ptr(), "a wrapper": held is not y}}


def _eager_functional() -> dict[str, tuple[float, ...]]:
    x, large = torch.zeros(16, 128), torch.zeros(128, 1024)
    reduce, wait, group = functional_op("all_reduce"), functional_op("wait_tensor"), world_name()

    # reading an element makes a functional result arrive; the in-place one is read as well, to be fair
    pieces = {
        "in place": lambda: cliff.inplace(x)[0, 0].item(),
        "unwrapped": lambda: wait(reduce(x, "sum", group))[0, 0].item(),
        "functional": lambda: cliff.functional(x)[0, 0].item(),
    }
    # of a tensor for which memory is not handed out at once
    pieces |= {
        "large in place": lambda: cliff.inplace(large)[0, 0].item(),
        "large in a copy": lambda: cliff.inplace(large.clone())[0, 0].item(),
    }
    return _interleaved(pieces, dist.barrier)


def _interleaved(
    pieces: Mapping[str, Callable[[], Any]], barrier: Callable[[], Any] | None, calls: int = CALLS
) -> dict[str, tuple[float, ...]]:
    def repeated(piece: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(calls):
                piece()

        return run

    taken = interleave({name: repeated(p) for name, p in pieces.items()}, ROUNDS, 3, barrier)
    return {name: measurement.samples for name, measurement in taken.items()}


@judging(eager_functional)
def functional_is_slower_in_eager(seen: Seen) -> Result:
    """In eager a functional all-reduce takes longer than the in-place one."""
    return timing_result(seen, "slower", "2 GPUs over NCCL")


@judging(eager_functional)
def allocation_and_wrapping_cost(seen: Seen) -> Result:
    """A functional all-reduce allocates, wraps, and is slower; a new copy costs time, and so does the wrapper."""
    whole = functional_is_slower_in_eager(seen)
    results = [whole] + [timing_result(part, "slower", "2 GPUs over NCCL") for part in seen["parts"].values()]
    copy, wrapper = (part["ratio"] for part in seen["parts"].values())
    said = f"{whole.measured}; in place in a new copy {copy:.2f}, functional against unwrapped {wrapper:.2f}"
    if lacking := [name for name, there in seen["made"].items() if not there]:
        return verdict(False, f"{said}; the result has not {', '.join(lacking)}")
    worst = next((r for status in (CHANGED, CANNOT_TELL) for r in results if r.status == status), whole)
    return Result(worst.status, said, worst.missing)


@probe
def eager_dtensor(bench: Bench) -> Seen:
    """Adding two small tensors as they are and as replicated DTensors: the same arithmetic, no communication."""
    return timed("gloo · cpu, no communication", bench.run(_eager_dtensor)[0], "DTensor", "Tensor")


def _eager_dtensor() -> dict[str, tuple[float, ...]]:
    x = torch.zeros(16, 128)
    wrapped = distribute_tensor(x, init_device_mesh("cpu", (2,)), [Replicate()])
    return _interleaved({"Tensor": lambda: x + x, "DTensor": lambda: wrapped + wrapped}, None)


@judging(eager_dtensor)
def dtensor_has_overhead_in_eager(seen: Seen) -> Result:
    """In eager an operation on DTensors takes longer than the same one on their local tensors."""
    return timing_result(seen, "slower", "any machine")


@probe
def compiled_dtensor(bench: Bench) -> Seen:
    """Eight small operations and 48 products, on replicated DTensors and on plain tensors, in eager and compiled."""
    found: Seen = {}
    for name, products in (("small", False), ("products", True)):
        samples = bench.run(_compiled_dtensor, products)[0]
        label = f"gloo · cpu, no communication, {'48 products' if products else '8 small operations'}"
        ways = {
            way: timed(label, samples, f"{way} DTensor", f"{way} Tensor") for way in ("eager", "compiled")
        }
        found[name] = ways
    return found


def _compiled_dtensor(products: bool) -> dict[str, tuple[float, ...]]:
    def small(x):
        for _ in range(4):
            x = (x + 1) * 0.5
        return x

    def multiply(x):
        for _ in range(48):
            x = x @ x
        return x

    dynamo_reset()
    chain, x = (multiply, torch.eye(96)) if products else (small, torch.zeros(16, 128))
    wrapped = distribute_tensor(x, init_device_mesh("cpu", (2,)), [Replicate()])
    # a function for each kind, so that neither looks through the other's guards
    plain, sharded = (torch.compile(own(chain), fullgraph=True) for _ in range(2))
    with torch.no_grad():
        pieces = {
            "eager Tensor": lambda: chain(x),
            "eager DTensor": lambda: chain(wrapped),
            "compiled Tensor": lambda: plain(x),
            "compiled DTensor": lambda: sharded(wrapped),
        }
        return _interleaved(pieces, None, 4 if products else CALLS)


NOTHING_LEFT = 1.02  # compiled, so much of the time of plain tensors still counts as no overhead


@judging(compiled_dtensor)
def compiling_leaves_no_overhead(seen: Seen) -> Result:
    """Compiled, a chain of operations on DTensors takes as long as on plain tensors; in eager it takes longer."""
    return _overhead(**seen["small"])


@judging(compiled_dtensor)
def compiling_can_leave_no_overhead(seen: Seen) -> Result:
    """In a long region, which pays once what a call costs, compiled DTensors take as long as plain tensors."""
    return _overhead(**seen["products"])


def _overhead(eager: Seen, compiled: Seen) -> Result:
    said = (
        f"DTensors take {eager['ratio']:.2f} times the time of plain tensors in eager, {compiled['ratio']:.2f} times "
        f"compiled [{compiled['label']}]"
    )
    if eager["outcome"] != "slower":
        return cannot_tell("a machine that shows the overhead in eager", said)
    if compiled["outcome"] == "slower":
        less = compiled["high"] is not None and compiled["high"] < (eager["low"] or 0)
        return verdict(False, f"{said}: {'less, and not gone' if less else 'not gone'}")
    if compiled["high"] is None or compiled["high"] > NOTHING_LEFT:
        return cannot_tell("the spread is too wide: what may be left is not told from nothing", said)
    return verdict(True, said)
