"""What runs on the ranks for lesson 18: a service that is watched, timed, and given a day's work."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from course.repair.stages import build
from labkit import places
from labkit.contract import compile_health
from labkit.ranks import here
from labkit.ranks.output import quiet_stderr
from labkit.records import install, record
from labkit.timing import Times, interleave

__all__ = ["PROMPTS", "day", "timed", "watched"]

PROMPTS = tuple(tuple(range(length)) for length in (11, 9, 10))  # what comes, again and again
TURNS = 4  # how often they come before anything is counted: a counter has run into Dynamo's limit by then
FUNCTIONAL = "_c10d_functional::all_reduce"
RESUMED = (
    "torch_dynamo_resume_in"  # what follows a break is compiled anew for each shape of what comes before it
)


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
        before = {compiled.id for compiled in install().known()}
        shard = code.Shard(settings, here().rank, here().world_size, dist.group.WORLD)
        shard.warm_up()
        warm = {compiled.id for compiled in install().known()}
        work = list(enumerate(TURNS * PROMPTS))
        with compile_health(places.place) as traffic:
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
    new = [compiled for compiled in install().known() if compiled.id not in warm]
    events = rec.events[rec.events["forward"] >= 0]
    regions = events[events["kind"] == "region"]
    eager = [row for row in events[events["name"] == FUNCTIONAL].itertuples() if not _inside(row, regions)]
    breaks = rec.tables["breaks"]
    rec.tables["breaks"] = breaks[
        ~breaks["compile_id"].isin(before)
    ]  # a stage before this one may have given up
    return {
        "first": [_place(c) for c in new if c.id.endswith("/0") and not c.co_name.startswith(RESUMED)],
        "recompiles": traffic.recompiles,
        "guards": traffic.guards,
        "error": error,
        "graphs": sorted(rec.graphs["digest"]),
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


def _inside(event: Any, others: pd.DataFrame) -> bool:
    starts, ends = others["start_us"], others["end_us"]
    return bool(((starts <= event.start_us) & (event.end_us <= ends)).any())


def _place(compiled: Any) -> str:
    return places.place(compiled.filename, compiled.line, compiled.co_name)


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
