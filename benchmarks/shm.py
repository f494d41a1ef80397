"""How long a collective takes over shared memory and over gloo: both in one run, their rounds interleaved.

    python benchmarks/shm.py [--ranks 2] [--rounds 30] [--calls 160]

A line gives microseconds a call: the median over the rounds of a round's mean, p10 to p90, and the ratio. One intra-op
thread a rank. Ranks that outnumber the free cores measure the scheduler: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

LIMIT_S = 600


def operations(n: int) -> dict[str, Callable]:
    """What is measured: name -> a function that takes a group and runs one collective on tensors made here."""
    import torch
    import torch.distributed as dist

    def all_reduce(*shape):
        x = torch.zeros(*shape)
        return lambda group: dist.all_reduce(x, group=group)

    # the names since torch 2.13; the older ones warn there at every call, which takes longer than the collective
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    x, wide, received = torch.zeros(16, 128), torch.zeros(16 * n, 128), torch.zeros(16 * n, 128)
    return {
        "all_reduce 16x1": all_reduce(16, 1),
        "all_reduce 16x128": all_reduce(16, 128),
        "all_reduce 512x512": all_reduce(512, 512),
        "all_reduce 2048x2048": all_reduce(2048, 2048),
        "broadcast 16x128": lambda group: dist.broadcast(x, 0, group=group),
        "all_gather 16x128": lambda group: all_gather(wide, x, group=group),
        "reduce_scatter 16x128": lambda group: reduce_scatter(x, wide, group=group),
        "all_to_all 16x128": lambda group: dist.all_to_all_single(received, wide, group=group),
        "barrier": lambda group: dist.barrier(group=group),
    }


def rank_main(rank: int, n: int, folder: str, args: argparse.Namespace, results) -> None:
    import torch
    import torch.distributed as dist

    from labkit import shm

    torch.set_num_threads(1)
    shm.register()
    began = time.perf_counter()
    dist.init_process_group("shm", init_method=f"file://{folder}/store", rank=rank, world_size=n)
    dist.all_reduce(torch.ones(3))
    started = time.perf_counter() - began
    gloo = dist.new_group(backend="gloo")
    for name, run in operations(n).items():
        calls = max(1, args.calls // 16) if "2048" in name else args.calls
        took: dict[str, list[float]] = {"shm": [], "gloo": []}
        for round_ in range(args.rounds + 1):
            for backend, group in (("shm", dist.group.WORLD), ("gloo", gloo)):
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    run(group)
                if round_:  # the first warms up
                    took[backend].append((time.perf_counter() - begin) / calls * 1e6)
        if rank == 0:
            results.put((name, took))
    if rank == 0:
        results.put(("", started))
    dist.barrier()
    dist.destroy_process_group()


def spread(values: list[float]) -> tuple[float, float, float]:
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], statistics.median(values), cuts[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description="microseconds a collective: shared memory against gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=160, help="collectives a round")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=rank_main, args=(rank, args.ranks, folder, args, results), daemon=True)
            for rank in range(args.ranks)
        ]
        try:
            for process in ranks:
                process.start()
            print(
                f"{args.ranks} ranks, {len(os.sched_getaffinity(0))} cores, n = {args.rounds} rounds of {args.calls}"
            )
            print(f"{'us a call':<22} {'shm':>9} {'p10-p90':>17} {'gloo':>9} {'p10-p90':>17} {'gloo/shm':>9}")
            while True:
                name, took = results.get(timeout=LIMIT_S)
                if not name:
                    print(f"joining the group and a first all_reduce: {took * 1e3:.1f} ms")
                    break
                (a, shm, b), (c, gloo, d) = spread(took["shm"]), spread(took["gloo"])
                print(
                    f"{name:<22} {shm:9.1f} {f'{a:.1f}-{b:.1f}':>17} {gloo:9.1f} {f'{c:.1f}-{d:.1f}':>17} "
                    f"{gloo / shm:9.1f}",
                    flush=True,
                )
            for process in ranks:
                process.join(30)
            return max(process.exitcode or 0 for process in ranks)
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()


if __name__ == "__main__":
    sys.exit(main())
