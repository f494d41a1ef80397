"""Inductor's passes on gathered weights: collectives bucketed, or moved away from their waits, in its own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from course.fsdp.comm_passes import between
from course.shared import program as programs
from course.shared.options import chosen, whole
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import PerRank, Report, provenance

__all__ = ["NEEDED", "run"]

NEEDED = ("WAYS", "Chain", "gathered", "inductor_calls")
TOLERANCE = 1e-5  # of the largest gradient of the same weight, float32


def run(
    ranks: Ranks,
    ways: Sequence[str] = (),
    *,
    width: int = 128,
    layers: int = 4,
    execute: bool = False,
    talk: bool = False,
    program: Any = None,
) -> Report:
    """Compile a forward and a backward through gathered weights under each setting, and read the order of the calls.

    Args:
        ranks: started ranks.
        ways: names of settings, the program's `WAYS`; all for an empty list.
        width: rows and columns of each weight, a multiple of the ranks.
        layers: weights in the chain. There is nothing else, so that the code is calls.
        execute: also compile and run what Inductor wrote. Otherwise it stops when the code is written (bucketing copies
            in C++, which takes a compiler's seconds), and the step runs the graph as it was before the passes.
        talk: print each setting as it begins.
        program: what has `NEEDED`; the lesson's own where it is left out.

    Returns:
        Table `order`: way, pass ('forward', 'backward'), calls, gathers, scatters, products between a collective and
        its wait, whether all ranks wrote the same, and how far gradients are apart from one process.

    Raises:
        ValueError: a way or a size cannot be run, or the program lacks something; nothing has run then.
        RankError: a rank fails.

    >>> from course.fsdp import passes
    >>> passes.run(None, ["fast"])
    Traceback (most recent call last):
    ValueError: unknown way 'fast': there is as written, bucketed, reordered, overlap scheduling
    """
    code = programs.choose("fsdp", program, NEEDED)
    ways = chosen(list(ways or code.code.WAYS), code.code.WAYS, "way")
    whole(width=width, layers=layers)
    if width % ranks.world_size:
        raise ValueError(f"width must be a multiple of the {ranks.world_size} ranks, got {width}")
    found = ranks.run(_measure, code.code, ways, width, layers, execute, talk, timeout=300)
    made = provenance(
        backend=ranks.backend,
        device=ranks.device,
        width=width,
        layers=layers,
        execute=execute,
        program=code.digest,
    )
    return _report(found, ranks.label, made, code.notes)


# --- on a rank ---


def _measure(
    code: Any, ways: list[str], width: int, layers: int, execute: bool, talk: bool
) -> list[dict[str, Any]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = torch.randn(size, 32, width, generator=torch.Generator().manual_seed(0))

    def chain() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return code.Chain(width, layers)

    summed = chain()  # what the reduce-scatter sums: every rank's own output
    for x in inputs:
        summed(x).sum().backward()
    right = [parameter.grad.chunk(size)[rank] for parameter in summed.parameters()]
    rows = []
    for way in ways:
        if talk and rank == 0:
            print(way, flush=True)
        torch_compat.dynamo_reset()
        model = code.gathered(chain())
        with quiet_stderr():
            pieces = code.inductor_calls(model, way, inputs[rank], execute)
        pairs = zip(model.parameters(), right, strict=True)
        apart = max(float((p.grad - g).abs().max() / g.abs().max()) for p, g in pairs)
        for name, calls in zip(("forward", "backward"), pieces, strict=True):
            rows.append({"way": way, "pass": name, "calls": calls, "apart": apart})
    torch_compat.dynamo_reset()
    return rows


# --- in the kernel ---


def _report(
    found: PerRank[list[dict[str, Any]]], label: str, made: dict[str, Any], edited: list[str]
) -> Report:
    rows = []
    for i, row in enumerate(found[0]):
        calls = row["calls"]
        # `between` reads gathers; what a reduce-scatter has beside it is counted the same way
        moved = ["all_gather" if call == "reduce_scatter" else call for call in calls]
        rows.append(
            {
                "way": row["way"],
                "pass": row["pass"],
                "gathers": calls.count("all_gather"),
                "scatters": calls.count("reduce_scatter"),
                "products between": between(moved),
                "ranks alike": all(one[i]["calls"] == calls for one in found),
                "gradients apart": max(one[i]["apart"] for one in found),
                "calls": " ".join(calls),
            }
        )
    table = pd.DataFrame(rows)
    wrong = table.loc[table["gradients apart"] > TOLERANCE, "way"].unique()
    read = "Inductor's code was read and not run; the graph was run"
    ran = "what Inductor wrote was run" if made["execute"] else read
    notes = [f"{ran}; gradients {'WRONG: ' + ', '.join(wrong) if len(wrong) else 'are those of one process'}"]
    title, view = "Inductor's passes on gathered weights", "course.fsdp.figures:figure"
    return Report("fsdp_passes", title, label, {"order": table}, [], made, [*notes, *edited], view)
