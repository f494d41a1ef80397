"""What tracing costs by world size: seconds and peak memory of a new process for each, rank 0 of a world not there.

    python benchmarks/scale.py [--worlds 2,64,1024] [--dim 16384] [--tokens 2048] [--repeats 5]

A process is forked for every trace from one that has imported torch, so neither the import nor an earlier trace is in
it; `seconds` is the median over the repeats, worlds in turn, `peak_mib` the most that one of them had. These are times
of the tracer: the worlds themselves are simulated, and have none.
"""

from __future__ import annotations

import argparse
from statistics import median

import pandas as pd

from course.scale.worlds import parse_worlds, trace_all
from labkit import lessons
from labkit.ranks import Ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default="2,64,1024")
    parser.add_argument("--dim", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    config = lessons.program("cliff").Config(dim=given.dim, heads=given.heads, blocks=1, tokens=given.tokens)
    worlds = parse_worlds(given.worlds, config)
    seen: dict[int, list[dict]] = {world: [] for world in worlds}
    with Ranks(1, "cpu", "fake", quiet=True) as one:
        for _ in range(given.repeats):
            for world in worlds:
                one.restart()
                seen[world].append(one.run(trace_all, lessons.program("scale"), config, (world,))[0][0])
    rows = [
        {
            "world_size": world,
            "tracer: seconds": round(median(t["seconds"] for t in traces), 2),
            "slowest": round(max(t["seconds"] for t in traces), 2),
            "cpu seconds": round(median(t["cpu_seconds"] for t in traces), 2),
            "peak_mib": round(max(t["peak_mib"] for t in traces)),
            "MiB of weights a rank": round(traces[0]["weight_bytes"] / 2**20, 1),
            "collectives": len(traces[0]["collectives"]),
        }
        for world, traces in seen.items()
    ]
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
