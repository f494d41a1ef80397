"""Compile time over depth: a whole model at once, block by block, and as one region that is traced once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.experiments.guards import COMPILERS, FRESH, FULL
from labkit.experiments.options import ROUNDS, Option
from labkit.experiments.sweep import Sweep, parse_range
from labkit.ranks import Ranks
from labkit.report import Report, provenance
from labkit.timing import Verdict, check_rounds, compare, slowest

if TYPE_CHECKING:
    import pandas as pd

TITLE = "Compile time over depth"
QUESTION = "How does the first call grow with depth, and what do regions do about it?"
SOURCE = "topic 12, experiment 3 and 'regional compilation'; the compile post, core claim 5"
LINK = "shm"
OPTIONS = (
    Option("depths", str, "blocks of the models, such as 1,2,4,8 or 2:12:2 (default 1,2,4,8)", "LIST"),
    ROUNDS,
    FULL,
    FRESH,
)
WHOLE, BLOCKS, NESTED = "whole", "block by block", "nested region"
FORMS = (WHOLE, BLOCKS, NESTED)
WIDTH = 16
DEEPEST = 128
TOLERANCE = 1e-4


def run(
    ranks: Ranks,
    depths: str | Sequence[int] = (1, 2, 4, 8),
    *,
    compiler: str = "eager",
    rounds: int = 8,
    full: bool = False,
    fresh: bool = False,
    folder: str | Path | None = None,
    timeout: float | None = 900.0,
    talk: bool = False,
) -> Report:
    """Time the first call of models of several depths, compiled from nothing, in three forms in the same rounds.

    depths: numbers of blocks, at least two different ones, as numbers or '1,2,4' or '2:12:2'. compiler: 'eager' is
    Dynamo alone, 'inductor' all of it, which takes a hundred times as long on a CPU. rounds: compiles of each form at
    each depth; below eight no verdict is possible. full: up to 32 blocks, with Inductor. A depth is a point: it is kept
    when it is done, and an interrupted call goes on behind it.

    `fits` has for each form a line through the medians, seconds = first + per block * depth, and the exponent p of
    seconds ~ depth^p over the upper half of the depths, with an interval from resampled rounds. Raises ValueError for
    depths that are no sweep, before any rank is started, and RankError when a rank fails.

    >>> import tempfile
    >>> with Ranks(2, device="cpu", backend="shm", quiet=True) as ranks, tempfile.TemporaryDirectory() as folder:
    ...     report = run(ranks, [1, 3], rounds=2, folder=folder)
    >>> report.tables["graphs"].query("rank == 1 and depth == 3").set_index("form")["traced"].to_dict()
    {'block by block': 1, 'nested region': 1, 'whole': 3}
    """
    if full:
        compiler, depths, rounds = "inductor", (1, 2, 4, 8, 16, 32), max(rounds, 8)
    chosen = parse_range("depths", depths, 1, DEEPEST)
    if compiler not in COMPILERS:
        raise ValueError(f"unknown compiler {compiler!r}: there is {', '.join(COMPILERS)}")
    check_rounds(rounds)
    settings = {
        "backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size, "threads": ranks.threads,
        "compiler": compiler, "rounds": rounds,
    }  # fmt: skip
    sweep = Sweep("depth", settings, folder, fresh, talk)
    points = {f"{depth} blocks": depth for depth in sorted(set(chosen))}

    def measure(depth: int) -> list[dict[str, Any]]:
        found = ranks.run(_measure, depth, compiler, rounds, timeout=timeout)
        return [{"depth": depth, "rank": rank, **row} for rank, rows in found.items() for row in rows]

    rows = sweep.run(points, measure)
    return _report(rows, ranks.label, provenance(**settings, resumed=sweep.resumed), sweep.note())


# --- on a rank ---


def model(depth: int) -> Any:
    """A stack of small blocks (norm, two products, an all-reduce, a residual), seeded, the same on every rank."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from labkit.torch_compat import funcol

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x):  # type: ignore[no-untyped-def]
            h = nn.functional.layer_norm(x, (WIDTH,))
            h = self.down(nn.functional.gelu(self.up(h)))
            return x + funcol.all_reduce(h, "avg", dist.group.WORLD)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(depth))

        def forward(self, x):  # type: ignore[no-untyped-def]
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    return Model()


def _measure(depth: int, compiler: str, rounds: int) -> list[dict[str, Any]]:
    """One row for each form and round: seconds of the first call, compiled from nothing, blocks traced, error."""
    import random
    import time

    import torch
    import torch.distributed as dist

    from labkit import torch_compat

    backend = torch_compat.compile_backend(compiler)
    x = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)
    rows = []
    with torch.no_grad(), torch_compat.no_compile_caches():
        expected = model(depth)(x) + 0
        for i in range(-1, rounds):  # the first round warms up: imports, and the compiler's own first times
            for form in random.Random(i).sample(FORMS, len(FORMS)):
                torch_compat.dynamo_reset()
                whole, seen = model(depth), [0, 0]  # graphs, and blocks traced into them

                def keep(graph: Any, inputs: Any, seen: list[int] = seen) -> Any:
                    seen[0] += 1
                    seen[1] += bodies(graph)
                    return backend(graph, inputs)

                if form == NESTED:
                    kind = type(whole.blocks[0])
                    kind.forward = torch.compiler.nested_compile_region(kind.forward)
                run = whole if form == BLOCKS else torch.compile(whole, backend=keep)
                if form == BLOCKS:
                    for block in whole.blocks:
                        block.compile(backend=keep)
                dist.barrier()
                began = time.perf_counter()
                y = run(x) + 0
                seconds = time.perf_counter() - began
                error = float((y - expected).abs().max())
                row = {"form": form, "round": i, "seconds": seconds, "error": error}
                rows.append(row | {"graphs": seen[0], "traced": seen[1]})
        torch_compat.dynamo_reset()
    return [row for row in rows if row["round"] != -1]


def bodies(graph: Any) -> int:
    """How many blocks' bodies a graph holds: those written out, and each region that it calls, once."""
    nodes = list(graph.graph.nodes)
    written = sum("gelu" in str(node.target) for node in nodes if node.op == "call_function")
    called = {
        str(node.args[0].target)
        for node in nodes
        if node.op == "call_function" and str(node.target) == "invoke_subgraph"
    }
    return written + len(called)


# --- in the kernel ---


def _report(rows: list[dict[str, Any]], label: str, settings: dict[str, Any], resumed: str) -> Report:
    import pandas as pd

    samples = pd.DataFrame(rows)
    graphs = samples.groupby(["depth", "form", "rank"], sort=False)[["graphs", "traced", "error"]].max()
    first = samples.groupby(["depth", "form", "round"], sort=False)["seconds"].max().reset_index()
    by = first.groupby(["depth", "form"], sort=False)["seconds"]
    summary = by.quantile([0.1, 0.5, 0.9]).unstack().set_axis(["p10_s", "median_s", "p90_s"], axis=1)
    summary["n"] = by.count()
    fits = fit(first)
    tables = {
        "fits": fits,
        "summary": summary.reset_index(),
        "samples": samples,
        "graphs": graphs.reset_index(),
    }
    worst = float(samples["error"].max())
    notes = [
        f"outputs {'agree' if worst <= TOLERANCE else 'DO NOT AGREE'} with eager: largest difference {worst:.1e}"
    ]
    notes += [resumed] if resumed else []
    verdicts = _verdicts(samples)
    return Report("depth", TITLE, label, tables, verdicts, settings, notes, "labkit.views.depth:figure")


def fit(first: pd.DataFrame, resamples: int = 400, seed: int = 0) -> pd.DataFrame:
    """The growth of each form's seconds (columns depth, form, round, seconds) with depth: a line, and an exponent.

    `first_s` + `per_block_s` * depth is the least-squares line through the medians; `exponent` the slope of log seconds
    over log depth in the upper half of the depths, at least two of them. `low` and `high` are 99 % of the exponents of
    rounds drawn anew.

    >>> import pandas as pd
    >>> rows = [(d, "whole", r, 0.5 + 0.25 * d) for d in (1, 2, 4) for r in range(3)]
    >>> line = fit(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])).iloc[0]
    >>> float(line["first_s"].round(6)), float(line["per_block_s"].round(6))
    (0.5, 0.25)
    """
    import numpy as np
    import pandas as pd

    draw, found = np.random.default_rng(seed), []
    for form, rows in first.groupby("form", sort=False):
        table = rows.pivot(index="depth", columns="round", values="seconds").sort_index()
        depths, taken = table.index.to_numpy(float), table.to_numpy()
        middle = np.median(taken, axis=1)
        per_block, zero = np.polyfit(depths, middle, 1)
        upper = slice(min(len(depths) // 2, len(depths) - 2), None)

        def slope(values: Any, depths: Any = depths, upper: slice = upper) -> float:
            return float(np.polyfit(np.log(depths[upper]), np.log(values[upper]), 1)[0])

        again = [
            slope(np.median(taken[:, draw.integers(0, taken.shape[1], taken.shape[1])], axis=1))
            for _ in range(resamples)
        ]
        low, high = np.quantile(again, [0.005, 0.995])
        found.append((form, zero, per_block, slope(middle), float(low), float(high), taken.shape[1]))
    columns = ["form", "first_s", "per_block_s", "exponent", "low", "high", "n"]
    return pd.DataFrame(found, columns=columns)


def _verdicts(samples: pd.DataFrame) -> list[Verdict]:
    deepest = samples["depth"].max()
    mine = samples[samples["depth"] == deepest]
    taken = {
        form: slowest(f"{form}, {deepest} blocks", {r: list(s) for r, s in rows.groupby("rank")["seconds"]})
        for form, rows in mine.groupby("form", sort=False)
    }
    return [compare(taken[a], taken[b]) for a, b in ((BLOCKS, WHOLE), (NESTED, WHOLE), (BLOCKS, NESTED))]
