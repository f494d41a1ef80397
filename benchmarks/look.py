"""What `oddrank look` adds to a training step on two ranks: steps without it, beside it and recorded, interleaved.

    python benchmarks/look.py [--rounds 12] [--steps 8] [--sizes small middle large] [--save DIR]

The steps are those of a compiled model under DDP, over gloo, in three sizes. A row gives milliseconds a
step: the median over the rounds of a round's median, on the rank where it is longer, and what is added to the bare step
in percent, the median of the pairs with its interval. `watched` is a step that is not recorded, `recorded` one that
is. `wall` is what a clock says, and a busy machine moves it; `cpu` is the processor time of all threads of a rank,
which other processes hardly touch. The order of a round is drawn anew for each. Opening and closing the record falls
into the first and the last step of a round, which are left out of all; it has a column of its own. One intra-op thread
a rank. `--save DIR` keeps the Report as DIR/look.json.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import labkit
from labkit.timing import Times

SIZES = {
    "small": (32, 16),
    "middle": (512, 64),
    "large": (1024, 192),
}  # width of a layer, and rows of a batch
LIMITS = {"watched": 0.01, "recorded": 0.10}  # of the processor time of steps of 100 ms and more
LONG_S = 0.1
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Found = dict[tuple[str, str], list[float]]


def timed(step: Callable[[], None], steps: int) -> dict[str, list[float]]:
    """The seconds of each step by each clock."""
    took: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
    for _ in range(steps):
        began = {clock: now() for clock, now in CLOCKS.items()}
        step()
        for clock, now in CLOCKS.items():
            took[clock].append(now() - began[clock])
    return took


def measure(rounds: int, steps: int, width: int, rows: int) -> tuple[Found, Found]:
    """By clock and variant, for each round: the median of the inner steps, and what the outer two took more."""
    import torch
    import torch.distributed as dist
    from oddrank.look.steps import Options, Steps, watching

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(6))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = torch.nn.functional.gelu(layer(x))
            return x

    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = torch.nn.parallel.DistributedDataParallel(Net()), torch.randn(rows, width)

    def training() -> Callable[[], None]:
        compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=1e-6)

        def step() -> None:
            compiled(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    kinds = {"bare": Options(), "watched": Options(10**6, 1), "recorded": Options(0, steps)}
    inner: Found = defaultdict(list)
    outer: Found = defaultdict(list)
    for number in range(-1, rounds):  # the first compiles and warms up
        for name in random.Random(number).sample(sorted(kinds), len(kinds)):
            watch = Steps(kinds[name])
            dist.barrier()
            with watching(watch) if name != "bare" else contextlib.nullcontext():
                took = timed(training(), steps)
            assert (watch.rec is not None) == (name == "recorded")
            for clock, values in took.items() if number >= 0 else ():
                middle = statistics.median(values[1:-1])
                inner[clock, name].append(middle)
                outer[clock, name].append(values[0] + values[-1] - 2 * middle)
    return dict(inner), dict(outer)


def report(rounds: int, steps: int, sizes: list[str]) -> labkit.Report:
    """The Report of all rounds of all sizes."""
    import pandas as pd

    rows, verdicts = [], []
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True, timeout=None) as ranks:
        label = ranks.label
        for size in sizes:
            both = list(ranks.run(measure, rounds, steps, *SIZES[size]).values())
            inner, outer = (
                {key: list(map(max, *(rank[part][key] for rank in both))) for key in both[0][part]}
                for part in (0, 1)
            )
            for clock in CLOCKS:
                for name in LIMITS:
                    titles = f"{size}, {name}, {clock}", f"{size}, bare, {clock}"
                    times = Times(
                        dict(zip(titles, (inner[clock, name], inner[clock, "bare"]), strict=True)), label
                    )
                    verdict = times.compare(*titles)
                    verdicts.append(verdict)
                    adds = [(ratio - 1) * 100 for ratio in (verdict.ratio, verdict.low, verdict.high)]
                    inside, around = (statistics.median(taken[clock, name]) * 1e3 for taken in (inner, outer))
                    bare = statistics.median(inner[clock, "bare"]) * 1e3
                    rows.append((size, clock, name, bare, inside, *adds, around))
    columns = "size clock step bare_ms inside_ms adds_percent low_percent high_percent open_and_close_ms"
    table = pd.DataFrame(rows, columns=columns.split())
    about = labkit.report.provenance(rounds=rounds, steps=steps, sizes=sizes, ranks=2, threads=1)
    title = "What `oddrank look` adds to a training step"
    return labkit.Report("look", title, label, {"summary": table}, verdicts, about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--save", metavar="DIR")
    given = parser.parse_args()
    if given.steps < 3:
        parser.error(f"--steps: at least 3, of which the first and the last are left out, got {given.steps}")

    found = report(given.rounds, given.steps, given.sizes)
    print(found)
    if given.save:
        print(f"saved: {found.save(given.save)}")
    frame = found.frame
    long = (frame["clock"] == "cpu") & (frame["bare_ms"] >= LONG_S * 1e3)
    print(
        *(f"limit of a {name} step of 100 ms or more: {limit:.0%}" for name, limit in LIMITS.items()),
        sep="\n",
    )
    return int((frame["low_percent"] > frame["step"].map(LIMITS) * 100)[long].any())  # beyond all noise


if __name__ == "__main__":
    sys.exit(main())
