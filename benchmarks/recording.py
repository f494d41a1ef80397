"""What a forward costs more while `labkit.record()` is open: rounds with and without it, interleaved.

    python benchmarks/recording.py [--rounds 15] [--calls 10] [--widths 64 512 1024]

A line gives milliseconds a forward: the median over the rounds of a round's mean without a record, inside one, and what
the record adds, with p10 to p90 of the pairs. `operators` keeps every operator and collective (the default), `regions`
only compiled regions (`record(operators=False)`). One intra-op thread, four blocks, functional collectives on a group
that moves nothing. Opening and closing a record are not in it: they are given on a line of their own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

LIMIT = 0.05


def model(width: int):
    import torch

    from labkit import tensor_parallel

    torch.manual_seed(0)
    config = tensor_parallel.Config(dim=width, heads=4, blocks=4, tokens=64)
    whole = tensor_parallel.full(config)
    return tensor_parallel.shard(whole, 0, 2, tensor_parallel.functional), config.sample()


def seconds(call, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def measure(width: int, rounds: int, calls: int) -> dict[str, list[float]]:
    import torch

    from labkit import record

    torch._dynamo.reset()
    plain, x = model(width)
    run = torch.compile(plain)
    found: dict[str, list[float]] = {
        name: [] for name in ("without", "operators", "regions", "open and close")
    }
    with torch.no_grad():
        for _ in range(3):
            run(x)
        for _ in range(rounds):
            found["without"].append(seconds(lambda: run(x), calls))
            for name in ("operators", "regions"):
                began = time.perf_counter()
                with record(operators=name == "operators") as rec:
                    inside = time.perf_counter()
                    found[name].append(seconds(lambda: run(x), calls))
                    outside = time.perf_counter()
                if name == "operators":
                    found["open and close"].append(time.perf_counter() - outside + inside - began)
                assert rec.counts().loc[0, "regions"] == calls, rec.counts()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 512, 1024])
    args = parser.parse_args()

    import torch
    import torch.distributed as dist

    from labkit import hardware, torch_compat
    from labkit.graphs import install

    install()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=torch_compat.fake_store(), rank=0, world_size=2)
    print(f"torch {torch.__version__}, {hardware.describe()['hardware']}, host only, 1 thread")
    print(f"{'width':>6} {'without':>9} {'operators':>10} {'adds':>22} {'regions':>9} {'adds':>22}")
    worst = 0.0
    for width in args.widths:
        found = measure(width, args.rounds, args.calls)
        cells = []
        for name in ("operators", "regions"):
            more = sorted(b / a - 1 for a, b in zip(found["without"], found[name], strict=True))
            low, high = more[len(more) // 10], more[-1 - len(more) // 10]
            added = statistics.median(more)
            cells.append(
                f"{statistics.median(found[name]) * 1e3:9.3f} {added:8.1%} ({low:.1%} to {high:.1%})".ljust(
                    33
                )
            )
        worst = max(worst, added)
        print(f"{width:6} {statistics.median(found['without']) * 1e3:9.3f}  {cells[0]} {cells[1]}")
    closing = statistics.median(found["open and close"]) * 1e3
    print(f"opening and closing a record of {args.calls} forwards: {closing:.1f} ms")
    print(f"only regions: {worst:.1%} at most in the median; the limit is {LIMIT:.0%}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
