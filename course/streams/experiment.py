"""Functions of lesson 06 side by side: step time, peak allocation and overhead on a GPU, else their simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from course.shared.program import Program, choose
from course.shared.streams import simulate
from course.streams.capture import capture
from course.streams.declared import STREAMS as ABOUT
from labkit.experiments.experiment import Experiment
from labkit.ranks import Ranks, here
from labkit.report import Report, provenance
from labkit.timing import by_slowest, check_rounds, compare_all, interleave, samples

__all__ = ["run", "side_by_side"]

Way = Callable[..., torch.Tensor]
UNITS = {"mm": 4.0, "all_reduce": 3.0}  # of the simulation; every other kernel takes 1
SMALL = 64  # of the matrices of the simulation, whose sizes change nothing
MIB = 2**20
WARMUP = 3
COLUMNS = ("way", "step", "p10", "p90", "peak", "overhead_percent", "peak_percent")


def run(
    ranks: Ranks, *, size: int = 1024, rounds: int = 20, program: Any = None, talk: bool = False
) -> Report:
    """Run section 1 of lesson 06: two chains of products in one queue, in two, and with a host that waits.

    Args:
        ranks: one rank on a GPU; on a CPU the functions are simulated.
        size: of the matrices on a GPU.
        rounds: interleaved rounds.
        program: the cells of lesson 06, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.
        talk: accepted like every experiment's; nothing is said on the way.

    Returns:
        The report of `side_by_side`.

    Raises:
        ValueError: rounds are fewer than two.
        RankError: a rank failed.
    """
    names = ("one_stream", "two_streams", "host_waits")
    return side_by_side(ranks, ABOUT, choose("streams", program, names), names, 1, size, rounds)


def side_by_side(
    ranks: Ranks,
    about: Experiment,
    program: Program,
    names: Sequence[str],
    inputs: int,
    size: int,
    rounds: int,
) -> Report:
    """Compare ways to do the same, the first of which is the measure.

    Args:
        ranks: on GPUs; on a CPU the ways are captured and simulated.
        about: the experiment.
        program: what has the ways.
        names: of the ways, functions of `inputs` square matrices that return the same tensor.
        inputs: how many matrices they take.
        size: of the matrices on a GPU.
        rounds: interleaved rounds on a GPU.

    Returns:
        A report with the table `summary`: for each way the median step with p10 and p90 and the peak allocation, and
        what both are above those of the first way, in per cent. On GPUs in ms and MiB, by the slowest rank, with the
        table `samples` and verdicts; simulated in units and in matrices, with the table `spans`.

    Raises:
        ValueError: rounds are fewer than two.
        RankError: a rank failed.
    """
    check_rounds(rounds)
    ways = [getattr(program.code, name) for name in names]
    if ranks.device != "cuda":
        return _simulated(about, program, ways, inputs)
    found = ranks.run(_measure, ways, inputs, size, rounds, timeout=300)
    times = found.map(lambda seen: seen["samples"]).frame()
    taken = by_slowest(times, "variant")
    rows = [
        (name, *(1e3 * t for t in (one.median, one.p10, one.p90)), max(seen["peak"][name] for seen in found))
        for name, one in taken.items()
    ]
    first = ways[0].__name__
    pairs = [(way.__name__, first) for way in ways[1:]]
    right = all(seen["right"] for seen in found)
    notes = [*program.notes, *([] if right else ["the ways do not return the same numbers"])]
    tables = {"summary": _summary(rows), "samples": times}
    settings = {"backend": ranks.backend, "device": ranks.device, "size": size, "program": program.digest}
    made = provenance(**settings, unit="ms", of_peak="MiB")
    return _report(about, ranks.label, tables, compare_all(times, pairs, ranks.label), made, notes)


def _measure(ways: Sequence[Way], inputs: int, size: int, rounds: int) -> dict[str, Any]:
    """On a rank with a GPU: samples, the peak allocation of one step in MiB, and whether the results agree."""
    device = here().device
    given = [torch.full((size, size), 1 / size, device=device) for _ in range(inputs)]

    def step(way: Way) -> torch.Tensor:
        result = way(*given)
        torch.cuda.synchronize()
        return result

    peak, right = {}, True
    with torch.no_grad():
        expected = step(ways[0])
        for way in ways:
            right &= torch.allclose(step(way), expected)  # and the libraries have their workspaces
            torch.cuda.reset_peak_memory_stats()
            step(way)
            peak[way.__name__] = torch.cuda.max_memory_allocated() / MIB
        timed = {way.__name__: lambda way=way: step(way) for way in ways}
        taken = interleave(timed, rounds=rounds, warmup=WARMUP, barrier=dist.barrier)
    return {"samples": samples(taken), "peak": peak, "right": right}


def _simulated(about: Experiment, program: Program, ways: Sequence[Way], inputs: int) -> Report:
    x = torch.full((SMALL, SMALL), 1 / SMALL)
    runs = {
        way.__name__: simulate(capture(way, *[x.clone() for _ in range(inputs)], units=UNITS)) for way in ways
    }
    matrix = x.untyped_storage().nbytes()
    rows = [(name, *[one.makespan] * 3, one.peak / matrix) for name, one in runs.items()]
    spans = pd.concat([one.spans.assign(way=name) for name, one in runs.items()], ignore_index=True)
    gpus = "a CUDA GPU" if about.ranks == 1 else f"{about.ranks} ranks on CUDA GPUs"
    notes = [
        *program.notes,
        f"{about.name} needs {gpus}, and there is none here: this is its simulation, in units and in matrices",
    ]
    notes += [f"{name}: {race}" for name, one in runs.items() for race in one.races]
    tables = {"summary": _summary(rows), "spans": spans}
    settings = provenance(unit="units", of_peak="matrices", program=program.digest)
    return _report(about, "simulated", tables, [], settings, notes)


def _summary(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    _, step, _, _, peak = rows[0]
    above = [(*row, 100 * (row[1] / step - 1), 100 * (row[4] / peak - 1)) for row in rows]
    return pd.DataFrame(above, columns=list(COLUMNS)).round(2)


def _report(
    about: Experiment, label: str, tables: Any, verdicts: Any, settings: Any, notes: list[str]
) -> Report:
    view = "course.streams.figures:figure"
    return Report(about.name, about.title, label, tables, verdicts, settings, notes, view)
