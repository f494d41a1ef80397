"""What `labkit look` adds to a training step of about 10 ms: rounds without it, beside it and recorded, interleaved.

    python benchmarks/look.py [--rounds 15] [--steps 8] [--width 512] [--save DIR]

A row gives milliseconds a step: the median over the rounds of a round's mean, and what is added to the bare step in
percent, the median of the pairs with its interval. `watched` is a step that is not recorded, `recorded` one that is.
Opening and closing the record falls into the first and the last step of a round, which are left out of all; it has a
column of its own. One process, one intra-op thread. `--save DIR` keeps the Report as DIR/look.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import labkit
from labkit.report import provenance
from labkit.timing import Measurement, compare

LIMITS = {"watched": 0.01, "recorded": 0.10}


def seconds(step, steps: int) -> tuple[float, float]:
    """The mean of the inner steps, and what the first and the last took more than these."""
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    inner = statistics.mean(took[1:-1])
    return inner, took[0] + took[-1] - 2 * inner


def measure(rounds: int, steps: int, width: int) -> dict[str, list[float]]:
    import torch

    from labkit.looking.steps import Options, Steps, watching

    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(6)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU())))
    x = torch.randn(64, width)

    def training(compiled, optimizer):
        def step() -> None:
            compiled(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    bare = training(torch.compile(model), torch.optim.SGD(model.parameters(), lr=1e-6))
    for _ in range(3):
        bare()
    found: dict[str, list[float]] = {name: [] for name in ("bare", "watched", "recorded", "open and close")}
    for _ in range(rounds):
        found["bare"].append(seconds(bare, steps)[0])
        for name, options in (("watched", Options(10**6, 1)), ("recorded", Options(0, steps))):
            watch = Steps(options)
            with watching(watch):
                step = training(torch.compile(model), torch.optim.SGD(model.parameters(), lr=1e-6))
                inner, around = seconds(step, steps)
            found[name].append(inner)
        found["open and close"].append(around)
        assert watch.rec is not None and watch.rec.counts().loc[0, "forwards"] == steps
    return found


def report(rounds: int, steps: int, width: int) -> labkit.Report:
    """The Report of all rounds."""
    import pandas as pd

    found = measure(rounds, steps, width)
    bare = Measurement("bare", tuple(found["bare"]))
    rows, verdicts = [], []
    for name in LIMITS:
        verdict = compare(Measurement(name, tuple(found[name])), bare)
        verdicts.append(verdict)
        adds = [(ratio - 1) * 100 for ratio in (verdict.ratio, verdict.low, verdict.high)]
        around = statistics.median(found["open and close"]) * 1e3 if name == "recorded" else 0.0
        rows.append((name, bare.median * 1e3, statistics.median(found[name]) * 1e3, *adds, around))
    columns = "step bare_ms inside_ms adds_percent low_percent high_percent open_and_close_ms"
    table = pd.DataFrame(rows, columns=columns.split())
    about = provenance(rounds=rounds, steps=steps, width=width, threads=1)
    title = "What `labkit look` adds to a training step"
    return labkit.Report("look", title, labkit.report.HOST_ONLY, {"summary": table}, verdicts, about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
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
    added = found.frame.set_index("step") / 100
    for name, limit in LIMITS.items():
        print(f"{name}: {added['adds_percent'][name]:.1%} in the median; the limit is {limit:.0%}")
    return int(any(added["low_percent"][name] > limit for name, limit in LIMITS.items()))  # beyond all noise


if __name__ == "__main__":
    sys.exit(main())
