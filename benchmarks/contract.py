"""What each part of the contract costs a call, on real ranks: all parts in turn, in interleaved rounds.

    python benchmarks/contract.py [--ranks 2] [--rounds 40] [--calls 10] [--save DIR]

A row is one part as a program calls it: microseconds a call, the median over the rounds of the slowest rank's mean,
with p10 and p90. `all_reduce` of 4 KiB over the same ranks stands beside them for scale. Parts that compare go over the
rendezvous store (a connection of their own). Entering a compiled region is measured with and without `compile_health`
open; what it takes to open and close one is in that. `--save DIR` keeps the Report as DIR/contract.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import labkit
from labkit.report import provenance

KIB = (4, 1024, 16384)


def measure(rounds: int, calls: int) -> Any:
    """On a rank: the times of `calls` calls of every part."""
    import torch
    import torch.distributed as dist

    from course.shared import contract
    from labkit.timing import interleave

    exchange = contract.Exchange.connect("benchmark", timeout=120.0)
    settings = contract.settings(env=("WORLD_SIZE", "SCOPE_TP_ALLOW_COMPILE"), flags={"attention": "auto"})
    x = torch.ones(1024)
    plan = contract.Plan("infer", {"x": x}, calls=2, phases={"recompute": False})
    step = contract.executing(contract.Plan("infer", calls=rounds * calls * 10)).__enter__()
    tensors = {kib: torch.ones(kib * 256) for kib in KIB}
    prints = {kib: contract.Fingerprints(exchange, {"w": tensor}) for kib, tensor in tensors.items()}
    digests = contract.InputDigests(exchange)
    off = contract.InputDigests(exchange, every=0)
    counts = {"graphs": 1, "breaks": 0}
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(x)

    def watched(inner: Any) -> Any:
        with contract.compile_health():
            for _ in range(calls):
                inner(x)

    parts: dict[str, Any] = {
        "all_reduce, 4 KiB": lambda: dist.all_reduce(x),
        "exchange": lambda: exchange.gather("benchmark", 1),
        "alike (settings)": lambda: contract.alike(exchange, "settings", settings),
        "agree (plan)": lambda: contract.agree(exchange, plan),
        "step (plan)": step,
        "alike (compile counts)": lambda: contract.alike(exchange, "compile counts", counts),
        "digests, off": lambda: off.check(0, x=x),
        "preflight": lambda: contract.preflight({"steps": 4}, {"x": x}),
        "compiled call": lambda: compiled(x),
    }
    for kib, tensor in tensors.items():
        parts[f"digest, {kib} KiB"] = lambda tensor=tensor: contract.digest(tensor)
        parts[f"digests compared, {kib} KiB"] = lambda tensor=tensor: digests.check(0, x=tensor)
        parts[f"fingerprint, {kib} KiB"] = lambda tensor=tensor: contract.fingerprint(tensor)
        parts[f"fingerprints compared, {kib} KiB"] = prints[kib].check

    def repeated(call: Any) -> Any:
        def many() -> None:
            for _ in range(calls):
                call()

        return many

    variants = {name: repeated(call) for name, call in parts.items()}
    variants["compiled call, compile_health open"] = lambda: watched(compiled)
    with torch.no_grad():
        return interleave(variants, rounds=rounds, warmup=2, barrier=dist.barrier)


def table(ranks: labkit.Ranks, rounds: int, calls: int) -> labkit.Report:
    """One row a part: microseconds of a call on the slowest rank."""
    import pandas as pd

    from labkit.timing import Times

    times = Times.merge(ranks.run(measure, rounds, calls, timeout=900, stall=60))
    quantiles = {"us": 0.5, "p10_us": 0.1, "p90_us": 0.9}
    us = {column: times.quantile(q) / calls * 1e6 for column, q in quantiles.items()}
    parts = pd.DataFrame(us).assign(rounds=rounds).rename_axis("part").reset_index()
    return labkit.Report(
        "contract",
        "What each part of the contract costs a call",
        ranks.label,
        {"parts": parts},
        [],
        provenance(rounds=rounds, calls=calls, world_size=ranks.world_size, threads=1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--save", metavar="DIR")
    options = parser.parse_args()
    with labkit.Ranks(options.ranks, device="cpu", backend="gloo", quiet=True) as ranks:
        report = table(ranks, options.rounds, options.calls)
    print(report)
    if options.save:
        print(report.save(options.save))
    return 0


if __name__ == "__main__":
    sys.exit(main())
