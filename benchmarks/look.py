"""What `labkit look` adds to a training step of about 10 ms: steps without it, beside it and recorded, interleaved.

    python benchmarks/look.py [--rounds 24] [--steps 8] [--width 512] [--save DIR]

A row gives milliseconds a step: the median over the rounds of a round's median, and what is added to the bare step in
percent, the median of the pairs with its interval. `watched` is a step that is not recorded, `recorded` one that is.
`wall` is what a clock says, and a busy machine moves it; `cpu` is the processor time of all threads of this process,
which other processes hardly touch. The order of a round is drawn anew for each. Opening and closing the record falls
into the first and the last step of a round, which are left out of all; it has a column of its own. One process, one
intra-op thread. `--save DIR` keeps the Report as DIR/look.json.
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

import labkit
from labkit.timing import Times

LIMITS = {"watched": 0.01, "recorded": 0.10}
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


def measure(rounds: int, steps: int, width: int) -> tuple[Found, Found]:
    """By clock and variant, for each round: the median of the inner steps, and what the outer two took more."""
    import torch

    from labkit.look.steps import Options, Steps, watching

    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(6)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU())))
    x = torch.randn(64, width)

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
            with watching(watch) if name != "bare" else contextlib.nullcontext():
                took = timed(training(), steps)
            assert (watch.rec is not None) == (name == "recorded")
            for clock, values in took.items() if number >= 0 else ():
                middle = statistics.median(values[1:-1])
                inner[clock, name].append(middle)
                outer[clock, name].append(values[0] + values[-1] - 2 * middle)
    return inner, outer


def report(rounds: int, steps: int, width: int) -> labkit.Report:
    """The Report of all rounds."""
    import pandas as pd

    inner, outer = measure(rounds, steps, width)
    rows, verdicts = [], []
    for clock in CLOCKS:
        for name in LIMITS:
            times = Times({f"{name}, {clock}": inner[clock, name], "bare": inner[clock, "bare"]})
            verdict = times.compare(f"{name}, {clock}", "bare")
            verdicts.append(verdict)
            adds = [(ratio - 1) * 100 for ratio in (verdict.ratio, verdict.low, verdict.high)]
            inside, around = (statistics.median(taken[clock, name]) * 1e3 for taken in (inner, outer))
            rows.append((clock, name, times.median["bare"] * 1e3, inside, *adds, around))
    columns = "clock step bare_ms inside_ms adds_percent low_percent high_percent open_and_close_ms"
    table = pd.DataFrame(rows, columns=columns.split())
    about = labkit.report.provenance(rounds=rounds, steps=steps, width=width, threads=1)
    title = "What `labkit look` adds to a training step"
    return labkit.Report("look", title, labkit.report.HOST_ONLY, {"summary": table}, verdicts, about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--save", metavar="DIR")
    given = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    found = report(given.rounds, given.steps, given.width)
    print(found)
    if given.save:
        print(f"saved: {found.save(given.save)}")
    limits = found.frame["step"].map(LIMITS) * 100
    print(*(f"limit of a {name} step: {limit:.0%}" for name, limit in LIMITS.items()), sep="\n")
    return int((found.frame["low_percent"] > limits).any())  # beyond all noise


if __name__ == "__main__":
    sys.exit(main())
