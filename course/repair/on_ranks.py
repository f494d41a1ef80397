"""What runs on the ranks for lesson 18: a service that is watched, timed, and given a day's work."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from oddrank.record import Range, Table, install, record

from course.repair.stages import build
from labkit.ranks import here
from labkit.ranks.output import quiet_stderr
from labkit.timing import Times, interleave

__all__ = ["PROMPTS", "day", "timed", "watched"]

PROMPTS = tuple(tuple(range(length)) for length in (11, 9, 10))  # what comes, again and again
TURNS = 4  # how often they come before anything is counted: a counter has run into Dynamo's limit by then
FUNCTIONAL = "_c10d_functional::all_reduce"


def watched(service: Any) -> dict[str, Any]:
    """Serve prompts on a shard, compiled without a code generator, and return what was compiled, run and computed.

    Returns:
        `first` (functions that were first compiled in traffic), `recompiles` in traffic and the `guards` that failed,
        `error` (the largest difference from the model on one process), `graphs` (a digest of each that runs),
        `functional` (collectives of this kind in one frame, outside of compiled code), and the record of three frames.
    """
    code = build(service)
    settings = replace(code.Settings(), backend="eager")
    whole = code.Shard(replace(settings, compiled=False), 0, 1, None)
    with quiet_stderr(), torch.no_grad():
        compiles = install().compiles
        before = set(compiles.tries)
        shard = code.Shard(settings, here().rank, here().world_size, dist.group.WORLD)
        shard.warm_up()
        warm = set(compiles.tries)
        work = list(enumerate(TURNS * PROMPTS))
        with record(operators=False) as traffic:
            frames = [shard.frame(torch.tensor(prompt), number) + 0 for number, prompt in work]
        off = [
            (frame - whole.frame(torch.tensor(prompt), number)).abs().max()
            for (number, prompt), frame in zip(work, frames, strict=True)
        ]
        error = float(torch.stack(off).max().nan_to_num(torch.inf))  # Python's max may drop a NaN
        with record() as rec:
            for number, prompt in enumerate(PROMPTS, len(work)):
                with rec.forward():
                    shard.frame(torch.tensor(prompt), number)
    new = [one.row for key, one in compiles.tries.items() if key not in warm]
    regions = [one for one in rec.ranges if one.kind == "region" and one.forward >= 0]
    called = [one for one in rec.ranges if one.name == FUNCTIONAL and one.forward >= 0]
    eager = [one for one in called if not _inside(one, regions)]
    # a stage before this one may have given up
    old = {one.row.id for key, one in compiles.tries.items() if key in before}
    rec.marks = Table(rec.marks.kind, [mark for mark in rec.marks if mark.compile not in old])
    return {
        # what follows a break is compiled anew for each shape of what comes before it
        "first": [row.place for row in new if row.id.endswith("/0") and not row.resume],
        "recompiles": traffic.counts[0].recompiles,
        "guards": [compiled.why for compiled in traffic.compiles if compiled.during and compiled.why],
        "error": error,
        "graphs": sorted(row.digest for row in rec.compiles if row.digest),
        "functional": len(eager) / len(PROMPTS),
        "record": rec,
    }


def timed(services: Mapping[str, tuple[Any, bool]], rounds: int) -> Any:
    """Time services against each other on a shard.

    Args:
        services: a service, and whether it is compiled, by the name of its stage.
        rounds: of the timing; a sample is a frame for each prompt.

    Returns:
        Seconds a frame.
    """
    calls: dict[str, Callable[[], Any]] = {}
    with quiet_stderr(), torch.no_grad():
        for name, (service, compiled) in services.items():
            code = build(service)
            settings = replace(code.Settings(), compiled=compiled)
            shard = code.Shard(settings, here().rank, here().world_size, dist.group.WORLD)
            if compiled:
                shard.warm_up()
            calls[name] = _all_prompts(shard)
            for _ in range(TURNS):
                calls[name]()
        taken = interleave(calls, rounds=rounds, barrier=dist.barrier).frame
    return Times(taken.assign(seconds=taken["seconds"] / len(PROMPTS)))


def _inside(one: Range, others: Sequence[Range]) -> bool:
    return any(other.start_us <= one.start_us and one.end_us <= other.end_us for other in others)


def _all_prompts(shard: Any) -> Callable[[], Any]:
    prompts, number = [torch.tensor(prompt) for prompt in PROMPTS], itertools.count()

    def call() -> float:
        for prompt in prompts:
            frame = shard.frame(prompt, next(number))
        return float(frame.sum())  # a functional result may still be on its way

    return call


def day(service: Any, work: list[Any], pause_s: float = 0.0, **settings: Any) -> Any:
    """Give a service work on three ranks; the lead pauses before each frame, where that is asked for.

    Returns:
        The answers, on the router.
    """
    code = build(service)
    frame = code.Shard.frame

    def late(shard: Any, prompt: Any, number: int) -> Any:
        if shard.part == 0:
            time.sleep(pause_s)
        return frame(shard, prompt, number)

    code.Shard.frame = late
    try:
        with quiet_stderr():
            answers = code.serve(replace(code.Settings(), compiled=False, **settings), work)
    finally:
        code.Shard.frame = frame
    return answers and [answer.tolist() for answer in answers]
