"""What runs in each rank for an experiment on variants: build, check, compile, record, then time them in turn."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from course.shared.variants import Variant, own, with_own_code
from labkit import torch_compat
from labkit.graphs import record
from labkit.graphs.compile_log import install
from labkit.ranks import here
from labkit.timing import interleave

FORWARDS = 3  # recorded forwards a variant; counts must agree between them


def measure(
    variants: list[Variant],
    program: Any,
    config: Any,
    rounds: int,
    reduces: Mapping[str, Callable[..., Any]],
    regional: bool = False,
    talk: bool = False,
    cache: str | None = None,
    recorded: bool = True,
) -> dict[str, Any]:
    """Run on every rank: returns first-call seconds, errors, one Record a variant, and samples in seconds.

    `program` has the model and the all-reduces of lesson 04; `reduces` maps a variant's letter to the all-reduce to use
    instead of the program's; `cache` is the folder of
    Inductor's cache, None for the usual one; `recorded` is whether there are Records at all. All variants are
    compiled before anything is recorded or timed, so counts and times are those of the same steady state.
    """
    me = here()
    caches: Any = nullcontext()
    if cache is not None:
        if me.device == "cpu":
            torch_compat.probe_cpu()  # in the usual folder, where the answer lies from the second time on
        # torch itself would set Triton's where it is not set, and leave it
        own = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": os.path.join(cache, "triton")}
        caches = mock.patch.dict(os.environ, own)
    device = torch.device(me.device)
    x = config.sample(device=device)
    whole = program.full(config)
    forwards: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {name: {} for name in ("first", "error", "cached", "compiles", "records")}
    found["regional"] = None

    def build(variant: Variant) -> torch.nn.Module:
        reduce = reduces.get(variant.letter) or getattr(program, variant.reduce)
        model = program.shard(whole, me.rank, me.world_size, own_reduce(reduce))
        return with_own_code(model.to(device))

    with caches, torch.no_grad():
        expected = whole(config.sample()).to(device)
        for variant in variants:
            model = build(variant)
            before = {c.id for c in install().known()}
            forward = torch.compile(model) if variant.compiled else model
            dist.barrier()
            started = time.perf_counter()
            y = settled(functools.partial(forward, x))()
            found["first"][variant.letter] = time.perf_counter() - started
            # without communication the sums are missing, and so is any meaning of the numbers
            error = float((y - expected).abs().max()) if me.backend != "fake" else None
            found["error"][variant.letter] = error
            forwards[variant.letter] = _timed(forward, x)
            forwards[variant.letter]()
            # a frame that was given up leaves no trace when it runs: remember which variant it belongs to
            made = [c for c in install().known() if c.id not in before]
            found["compiles"][variant.letter] = {c.id for c in made}
            found["cached"][variant.letter] = any(c.cached for c in made)
            if talk and me.rank == 0 and variant.compiled:
                print(f"{variant.title}: first call {found['first'][variant.letter]:.1f} s", flush=True)
        if regional:
            found["regional"] = _regional(build, variants, x)
        for letter, forward in forwards.items() if recorded else ():
            dist.barrier()
            with record() as rec:
                for _ in range(FORWARDS):
                    with rec.forward():
                        forward()
            found["records"][letter] = rec
        samples = interleave(forwards, rounds=rounds, warmup=3, barrier=dist.barrier)
    found["samples"] = {letter: taken.samples for letter, taken in samples.items()}
    return found


def settled(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call, which on a GPU also waits until the GPU is done: its time is the work's and not the launch's."""
    if here().device == "cpu":
        return call

    def run() -> Any:
        value = call()
        torch.cuda.synchronize()
        return value

    return run


def own_reduce(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A reader's plain function gets code of its own, as the model's modules do; a wrapped one stays as it is."""
    return reduce if hasattr(reduce, "_torchdynamo_disable") else own(reduce)


def _timed(forward: Callable[..., Any], x: Any) -> Callable[[], Any]:
    call = settled(functools.partial(forward, x))

    def run() -> Any:
        y = call()
        if x.device.type == "cpu":
            y[0, 0, 0].item()  # an eager functional result may be in flight: one element makes it arrive
        return y

    return run


def _regional(build: Callable[[Variant], Any], variants: list[Variant], x: Any) -> float | None:
    """Seconds of the first call when each block is compiled instead of the whole model (topic 12: regional)."""
    functional = next((v for v in variants if v.compiled and v.reduce == "functional"), None)
    if functional is None:
        return None
    model = build(functional)
    for block in model.blocks:
        block.compile()
    dist.barrier()
    started = time.perf_counter()
    settled(functools.partial(model, x))()
    return time.perf_counter() - started
