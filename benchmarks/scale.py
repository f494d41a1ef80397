"""What tracing costs by world size: seconds and peak memory of a new process for each, rank 0 of a world not there.

    python benchmarks/scale.py [--worlds 2,64,1024] [--dim 16384] [--tokens 2048] [--repeats 5]

A process is forked for every trace from one that has imported torch, so neither the import nor an earlier trace is in
it; `seconds` is the median over the repeats, worlds in turn, `peak_mib` the most that one of them had. These are times
of the tracer: the worlds themselves are simulated, and have none.
"""

from __future__ import annotations

import argparse
import resource
import time
from statistics import median
from typing import Any

import pandas as pd
import torch.distributed as dist

from labkit import lessons
from labkit.ranks import Ranks


def traced(scale: Any, config: Any, world: int) -> dict[str, float]:
    """On a rank that runs alone: a trace of lesson 16, without the rank's own group."""
    dist.destroy_process_group()
    began, worked = time.perf_counter(), time.process_time()
    graph = scale.trace(config, world)
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    inputs = [node.meta["val"].numel() for node in graph.graph.nodes if node.op == "placeholder"]
    return {
        "seconds": seconds,
        "cpu seconds": cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "MiB of weights a rank": 4 * (sum(inputs) - config.tokens * config.dim) / 2**20,
        "collectives": len(scale.messages(graph)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default="2,64,1024")
    parser.add_argument("--dim", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    scale = lessons.program("scale")
    config = scale.cliff.Config(dim=given.dim, heads=given.heads, blocks=1, tokens=given.tokens)
    seen: dict[int, list[dict[str, float]]] = {int(world): [] for world in given.worlds.split(",")}
    with Ranks(1, "cpu", "fake", quiet=True) as one:
        for _ in range(given.repeats):
            for world, traces in seen.items():
                one.restart()
                traces.append(one.run(traced, scale, config, world)[0])
    rows = [
        {
            "world_size": world,
            "tracer: seconds": round(median(t["seconds"] for t in traces), 2),
            "slowest": round(max(t["seconds"] for t in traces), 2),
            "cpu seconds": round(median(t["cpu seconds"] for t in traces), 2),
            "peak_mib": round(max(t["peak_mib"] for t in traces)),
            "MiB of weights a rank": round(traces[0]["MiB of weights a rank"], 1),
            "collectives": traces[0]["collectives"],
        }
        for world, traces in seen.items()
    ]
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
