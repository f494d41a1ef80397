"""Inductor's passes on gathered weights: collectives bucketed, or moved away from their waits, in its own code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from course.shared.options import whole
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import PerRank, Report
from labkit.torch_compat import no_default_overlap, overlap_scheduling, stated_hardware

__all__ = [
    "TOLERANCE",
    "between",
    "calls_of",
    "no_default_overlap",
    "overlap_scheduling",
    "run",
    "stated_hardware",
]

TOLERANCE = 1e-5  # of the largest gradient of the same weight, float32
CALLS = re.compile(
    r"(all_gather_into_tensor(?:_out)?|reduce_scatter_tensor|wait_tensor|extern_kernels\.mm)(?=\.default\(|\()"
)
WORDS = {"extern_kernels.mm": "mm", "wait_tensor": "wait", "reduce_scatter_tensor": "reduce_scatter"}


def calls_of(code: str) -> list[str]:
    """The collectives, waits and products that Inductor's code calls, in order, by short names.

    >>> calls_of("def call(args): extern_kernels.mm(a, b); wait_tensor.default(c)")
    ['mm', 'wait']
    """
    found = CALLS.findall(code[code.index("def call(") :])
    return [WORDS.get(call, call.replace("_into_tensor", "").replace("_out", "")) for call in found]


def between(calls: list[str]) -> int:
    """How many products stand between a collective and its wait, over all of them, in the order of the code.

    >>> between(["all_gather", "mm", "wait", "mm"])
    1
    """
    open_at: list[int] = []
    found = 0
    for i, call in enumerate(calls):
        if call in ("all_gather", "reduce_scatter"):
            open_at.append(i)
        elif call == "wait" and open_at:
            found += calls[open_at.pop(0) : i].count("mm")
    return found


def run(
    ranks: Ranks,
    ways: Iterable[str],
    chain: Callable[[int, int], Any],
    gathered: Callable[[Any], Any],
    calls: Callable[[Any, str, Any], list[list[str]]],
    *,
    width: int = 128,
    layers: int = 4,
) -> Report:
    """Compile a forward and a backward through gathered weights under each setting, and read the order of the calls.

    Inductor stops when its code is written (bucketing copies in C++, which takes a compiler's seconds), and the step
    runs the graph as it was before the passes.

    Args:
        ranks: started ranks.
        ways: names of settings.
        chain: makes the model, `chain(width, layers)`. There is nothing else than weights, so that the code is calls.
        gathered: shards the weights of a model, and gathers them where they are read.
        calls: compiles and runs a step, `calls(model, way, x)`; returns the calls of the forward and of the backward.
        width: rows and columns of each weight, a multiple of the ranks.
        layers: weights in the chain.

    Returns:
        Table `order`: way, pass ('forward', 'backward'), calls, gathers, scatters, products between a collective and
        its wait, whether all ranks wrote the same, and how far gradients are apart from one process.

    Raises:
        ValueError: a size cannot be run; nothing has run then.
        RankError: a rank fails.
    """
    whole(width=width, layers=layers)
    if width % ranks.world_size:
        raise ValueError(f"width must be a multiple of the {ranks.world_size} ranks, got {width}")
    found = ranks.run(_measure, list(ways), chain, gathered, calls, width, layers, timeout=300)
    return _report(found, ranks.label)


# --- on a rank ---


def _measure(
    ways: list[str], chain: Any, gathered: Any, calls: Any, width: int, layers: int
) -> list[dict[str, Any]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = torch.randn(size, 32, width, generator=torch.Generator().manual_seed(0))

    def seeded() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return chain(width, layers)

    summed = seeded()  # what the reduce-scatter sums: every rank's own output
    for x in inputs:
        summed(x).sum().backward()
    right = [parameter.grad.chunk(size)[rank] for parameter in summed.parameters()]
    rows = []
    for way in ways:
        torch_compat.dynamo_reset()
        model = gathered(seeded())
        with quiet_stderr():
            pieces = calls(model, way, inputs[rank])
        pairs = zip(model.parameters(), right, strict=True)
        apart = max(float((p.grad - g).abs().max() / g.abs().max()) for p, g in pairs)
        for name, piece in zip(("forward", "backward"), pieces, strict=True):
            rows.append({"way": way, "pass": name, "calls": piece, "apart": apart})
    torch_compat.dynamo_reset()
    return rows


# --- in the kernel ---


def _report(found: PerRank[list[dict[str, Any]]], label: str) -> Report:
    rows = []
    for i, row in enumerate(found[0]):
        calls = row["calls"]
        rows.append(
            {
                "way": row["way"],
                "pass": row["pass"],
                "gathers": calls.count("all_gather"),
                "scatters": calls.count("reduce_scatter"),
                "products between": between(calls),
                "ranks alike": all(one[i]["calls"] == calls for one in found.values()),
                "gradients apart": max(one[i]["apart"] for one in found.values()),
                "calls": " ".join(calls),
            }
        )
    table = pd.DataFrame(rows)
    wrong = table.loc[table["gradients apart"] > TOLERANCE, "way"].unique()
    said = "WRONG: " + ", ".join(wrong) if len(wrong) else "are those of one process"
    notes = [f"Inductor's code was read and not run; the graph was run; gradients {said}"]
    title, view = "Inductor's passes on gathered weights", "course.fsdp.figures:figure"
    return Report("fsdp_passes", title, label, {"order": table}, notes=notes, view=view)
