"""What `oddrank look` adds to a step: bare, watched, under `record()` alone, and recorded with all checks, interleaved.

    python benchmarks/look.py [--rounds 12] [--steps 8] [--programs small middle ...] [--parts] [--save DIR]

The programs run on two ranks over gloo, with one intra-op thread each. What is attached is what look attaches
(`oddrank.look.program.followed`). `watched` is a step that is not recorded, `record` one in a `record()` without the
checks, and `recorded` one with them. A row gives milliseconds a step: the median over the rounds of a round's median,
on the rank where it is longer, and what is added to the bare step in percent, the median of the pairs with its
interval. `wall` is what a clock says, and a busy machine moves it; `cpu` is the processor time of all threads of a
rank, which other processes hardly touch. The order of a round is drawn anew for each. What happens once falls into the
first and the last step of a round, which are left out of all, and has a column of its own. `--parts` adds what each
check takes of a recorded step; to measure it makes it longer. `--save DIR` keeps the Report as DIR/look.json.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import pkgutil
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import labkit
from labkit.timing import Times

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
KINDS = ("bare", "watched", "record", "recorded")
LIMIT = 0.10  # of the processor time of a recorded step
# of each program: the width of its layers, and the rows of its batch
PROGRAMS = {"small": (32, 16), "middle": (512, 64), "large": (1024, 192), "sharded": (256, 64)}
PROGRAMS |= {"reads": (64, 32), "parameters": (256, 32), "serving": (256, 4)}
PARTS = {
    "losses and inputs": ("training.Training._backward", "training.Training._given"),
    "gradients and draws": ("training.Training._trained", "training.Training._after"),
    "values that are read": ("choices.Choices._note",),
    "modules in eager": (
        "uncompiled.Uncompiled.enter",
        "uncompiled.Uncompiled.leave",
        "uncompiled.Uncompiled._called",
    ),
    "DDP's buckets": ("averaging.Averaging.own",),
    "switches": ("switch_effects.Seen.called",),
}
Found = dict[tuple[str, str], list[float]]


def timed(step: Callable[[], object], steps: int) -> dict[str, list[float]]:
    """The seconds of each step by each clock."""
    took: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
    for _ in range(steps):
        began = {clock: now() for clock, now in CLOCKS.items()}
        step()
        for clock, now in CLOCKS.items():
            took[clock].append(now() - began[clock])
    return took


def program(name: str) -> Callable[[], Callable[[], object]]:
    """A function that compiles a model, and makes its optimizer, and returns its step."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def layers(count: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList(torch.randn(width) for _ in range(240))

        def forward(self, x: Any) -> Any:
            return x * torch.stack(tuple(self.scales)).mean(0)

    width, rows = PROGRAMS[name]
    x = torch.randn(rows, width)
    model: Any = Scaled() if name == "parameters" else layers(6)
    if name == "sharded":
        for layer in (*model, model):
            fully_shard(layer)
    elif name != "serving":
        model = DistributedDataParallel(model)
    first = layers(2)

    def training() -> Callable[[], object]:
        if name == "sharded":
            for layer in model:
                layer.compile()
        compiled: Any = model if name == "sharded" else torch.compile(first if name == "reads" else model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

        def step() -> None:
            loss = (model(compiled(x)) if name == "reads" else compiled(x)).square().mean()
            loss.backward()
            for p in [*model.parameters()] * 8 if name == "reads" else ():
                if p.grad.norm().item() > 1e3:
                    raise RuntimeError("a gradient that is too large")
            optimizer.step()
            optimizer.zero_grad()

        return step

    def serving() -> Callable[[], object]:
        compiled = torch.compile(model)

        @torch.no_grad
        def step() -> list[int]:
            return compiled(x).argmax(-1).tolist()

        return step

    return serving if name == "serving" else training


@contextlib.contextmanager
def measured_parts(took: dict[str, list[float]]) -> Iterator[None]:
    """Add up the seconds that the checks take in a block, and their calls."""

    def around(part: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            found = original(*args, **kwargs)
            took[part].append(time.thread_time() - began)
            return found

        return call

    with contextlib.ExitStack() as undo:
        for part, names in PARTS.items():
            for name in names:
                path = f"oddrank.look.{name}"
                undo.enter_context(mock.patch(path, around(part, pkgutil.resolve_name(path))))
        yield


@contextlib.contextmanager
def attached(
    kind: str, steps: int, step: Callable[[], Callable[[], object]]
) -> Iterator[Callable[[], object]]:
    """A step as it runs in one of the `KINDS`."""
    from oddrank.look import program
    from oddrank.look.steps import Options
    from oddrank.record import record

    if kind == "record":
        with record() as rec:
            made = step()

            def marked() -> None:
                with rec.step():
                    made()

            yield marked
    elif kind == "bare":
        yield step()
    else:
        options = Options(0, steps) if kind == "recorded" else Options(10**6, 1)
        with program.followed(options, lambda seen: None) as watched:
            yield step()
            assert (watched.rec is not None) == (kind == "recorded")
            assert watched.found == steps, (watched.found, steps)


def measure(name: str, rounds: int, steps: int, parts: bool) -> tuple[Found, Found, dict[str, list[float]]]:
    """By clock and kind, for each round: the median of the inner steps, and what the outer two took more."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    step = program(name)
    inner: Found = defaultdict(list)
    outer: Found = defaultdict(list)
    for number in range(-1, rounds):  # the first compiles and warms up
        for kind in random.Random(number).sample(KINDS, len(KINDS)):
            dist.barrier()
            with attached(kind, steps, step) as one:
                took = timed(one, steps)
            for clock, values in took.items() if number >= 0 else ():
                middle = statistics.median(values[1:-1])
                inner[clock, kind].append(middle)
                outer[clock, kind].append(values[0] + values[-1] - 2 * middle)
    taken: dict[str, list[float]] = defaultdict(list)
    if parts:
        with measured_parts(taken), attached("recorded", 50, step) as one:
            timed(one, 50)
    return dict(inner), dict(outer), {part: [len(s) / 50, sum(s) / 50] for part, s in taken.items()}


def report(rounds: int, steps: int, programs: list[str], parts: bool) -> labkit.Report:
    """The Report of all rounds of all programs."""
    import pandas as pd

    rows, verdicts, of_parts = [], [], []
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True, timeout=None) as ranks:
        label = ranks.label
        for name in programs:
            both = list(ranks.run(measure, name, rounds, steps, parts).values())
            inner, outer = (
                {key: list(map(max, *(rank[part][key] for rank in both))) for key in both[0][part]}
                for part in (0, 1)
            )
            for clock in CLOCKS:
                times = Times({kind: inner[clock, kind] for kind in KINDS}, f"{label}, {name}, {clock}")
                for kind in KINDS[1:]:
                    verdicts.append(verdict := times.compare(kind, "bare"))
                    adds = [(ratio - 1) * 100 for ratio in (verdict.ratio, verdict.low, verdict.high)]
                    ms = [times.median[one] * 1e3 for one in ("bare", kind)]
                    once = statistics.median(outer[clock, kind]) * 1e3
                    # a record alone is opened before its first step
                    rows.append((name, clock, kind, *ms, *adds, None if kind == "record" else once))
            for part, (calls, seconds) in both[0][2].items():
                of_parts.append((name, part, calls, seconds / calls * 1e6, seconds * 1e6))
    columns = "program clock step bare_ms step_ms adds_percent low_percent high_percent once_ms"
    tables = {"summary": pd.DataFrame(rows, columns=columns.split())}
    if parts:
        columns = "program check calls_a_step us_a_call us_a_step"
        tables["parts"] = pd.DataFrame(of_parts, columns=columns.split())
    about = labkit.report.provenance(rounds=rounds, steps=steps, programs=programs, ranks=2, threads=1)
    return labkit.Report("look", "What `oddrank look` adds to a step", label, tables, verdicts, about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--save", metavar="DIR")
    given = parser.parse_args()
    if given.steps < 3:
        parser.error(f"--steps: at least 3, of which the first and the last are left out, got {given.steps}")

    found = report(given.rounds, given.steps, given.programs, given.parts)
    print(found)
    for table in list(found.tables.values())[1:]:
        print(table.to_string(index=False, float_format="%.1f"))
    if given.save:
        print(f"saved: {found.save(given.save)}")
    frame = found.frame
    beyond = frame["low_percent"] > LIMIT * 100  # beyond all noise
    print(f"limit of the processor time that a recorded step adds: {LIMIT:.0%}")
    return int((beyond & (frame["clock"] == "cpu") & (frame["step"] == "recorded")).any())


if __name__ == "__main__":
    sys.exit(main())
