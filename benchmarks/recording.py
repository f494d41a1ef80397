"""What a forward costs more while `record()` is open: rounds with and without it, interleaved.

    python benchmarks/recording.py [--rounds 15] [--calls 10] [--widths 64 512 1024] [--save DIR]

A row gives milliseconds a forward: the median over the rounds of a round's mean without a record and inside one, and
what the record adds in percent, the median of the pairs with its interval. `operators` keeps every operator and
collective (the default), `regions` only compiled regions (`record(operators=False)`). One intra-op thread, four blocks,
functional collectives on a group that moves nothing, so that there is nothing to hide behind. Opening and closing a
record are not in it: they have a column of their own. `--save DIR` keeps the Report as DIR/recording.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace

import labkit
from labkit.report import provenance
from labkit.timing import Times, Verdict

LIMIT = 0.05


def model(width: int):
    import torch

    from labkit import lessons

    torch.manual_seed(0)
    cliff = lessons.program("cliff")
    config = cliff.Config(dim=width, heads=4, blocks=4, tokens=64)
    whole = cliff.full(config)
    return cliff.shard(whole, 0, 2, cliff.functional), config.sample()


def seconds(call, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def measure(width: int, rounds: int, calls: int) -> dict[str, list[float]]:
    import torch
    from oddrank.record import record

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
                assert rec.counts[0].regions == calls, rec.counts
    return found


def table(widths: list[int], rounds: int, calls: int) -> labkit.Report:
    """All widths as a Report; one row a width and kind of record."""
    import pandas as pd

    columns = "width record without_ms inside_ms adds_percent low_percent high_percent open_and_close_ms"
    rows: list[tuple[float | str, ...]] = []
    verdicts: list[Verdict] = []
    for width in widths:
        found = measure(width, rounds, calls)
        times = Times({"no record": found["without"], **{n: found[n] for n in ("operators", "regions")}})
        ms = times.median * 1e3
        for name in ("operators", "regions"):
            verdict = replace(times.compare(name, "no record"), case={"width": width})
            verdicts.append(verdict)
            adds = ((ratio - 1) * 100 for ratio in (verdict.ratio, verdict.low, verdict.high))
            around = statistics.median(found["open and close"]) * 1e3
            rows.append((width, name, ms["no record"], ms[name], *adds, around))
    return labkit.Report(
        "recording",
        "What a forward costs more while a record is open",
        labkit.report.HOST_ONLY,
        {"summary": pd.DataFrame(rows, columns=columns.split())},
        verdicts,
        provenance(rounds=rounds, calls=calls, threads=1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 512, 1024])
    parser.add_argument("--save", metavar="DIR")
    options = parser.parse_args()

    import torch
    import torch.distributed as dist
    from oddrank.record import install

    from labkit import torch_compat

    install()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=torch_compat.fake_store(), rank=0, world_size=2)
    report = table(options.widths, options.rounds, options.calls)
    print(report)
    if options.save:
        print(f"saved: {report.save(options.save)}")
    regions = report.frame.query("record == 'regions'")
    worst = regions["adds_percent"].max() / 100
    print(f"only regions: {worst:.1%} at most in the median; the limit is {LIMIT:.0%}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
