"""Inductor's passes on gathered weights: collectives bucketed, or moved away from their waits, in its own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from labkit import torch_compat
from labkit.lessons.fsdp.routes import gathered
from labkit.lessons.shared.comm_passes import between, calls_of
from labkit.lessons.shared.options import chosen, whole
from labkit.ranks import Ranks, here
from labkit.ranks.output import quiet_stderr
from labkit.report import PerRank, Report, provenance

__all__ = ["WAYS", "run"]

WAYS = ("as written", "bucketed", "reordered", "overlap scheduling")
_, BUCKETED, REORDERED, SCHEDULED = WAYS
TOLERANCE = 1e-5  # of the largest gradient of the same weight, float32


def run(
    ranks: Ranks,
    ways: Sequence[str] = WAYS,
    *,
    width: int = 128,
    layers: int = 4,
    execute: bool = False,
    talk: bool = False,
) -> Report:
    """Compile a forward and a backward through gathered weights under each setting, and read the order of the calls.

    A chain of `layers` square weights and nothing else, so that the code is calls. execute: also compile and run what
    Inductor wrote, and compare gradients; otherwise it stops when the code is written (bucketing copies in C++, which
    takes a compiler's seconds) and the step runs the graph as it was before the passes. Table `order`: way, pass
    ('forward', 'backward'), calls, gathers, scatters, products between a collective and its wait, right (None where
    nothing of it ran). Raises ValueError for a way or size that does not exist, and RankError when a rank fails.

    >>> from labkit.lessons.fsdp import passes
    >>> passes.run(None, ["fast"])
    Traceback (most recent call last):
    ValueError: unknown way 'fast': there is as written, bucketed, reordered, overlap scheduling
    """
    ways = chosen(ways, WAYS, "way")
    whole(width=width, layers=layers)
    if width % ranks.world_size:
        raise ValueError(f"width must be a multiple of the {ranks.world_size} ranks, got {width}")
    found = ranks.run(_measure, ways, width, layers, execute, talk, timeout=300)
    made = provenance(backend=ranks.backend, device=ranks.device, width=width, layers=layers, execute=execute)
    return _report(found, ranks.label, made)


# --- on a rank ---


def _settings(way: str) -> dict[str, Any]:
    # times of nodes are stated, so that all ranks choose alike and nothing is measured on the way
    if way == BUCKETED:
        return {"bucket_all_gathers_fx": "all", "bucket_reduce_scatters_fx": "all"}
    if way == REORDERED:
        return {
            "reorder_for_compute_comm_overlap": True,
            "reorder_for_compute_comm_overlap_passes": ["raise_comms", "sink_waits"],
            "estimate_op_runtime": lambda node: 15.0,
        }
    if way == SCHEDULED:
        return torch_compat.overlap_scheduling()
    return {}


def _measure(ways: list[str], width: int, layers: int, execute: bool, talk: bool) -> list[dict[str, Any]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    device = here().device
    seeded = torch.Generator().manual_seed(0)
    weights = [(torch.randn(width, width, generator=seeded) / width**0.5).to(device) for _ in range(layers)]
    x = torch.randn(size, 32, width, generator=seeded).to(device)
    top = torch.randn(32, width, generator=seeded).to(device)

    def chain() -> nn.Module:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False, device=device) for _ in range(layers)))
        with torch.no_grad():
            for layer, weight in zip(model, weights, strict=True):
                layer.weight.copy_(weight)  # type: ignore[union-attr, operator]
        return model

    expected: list[list[Any]] = []
    for each in x:  # what all ranks would sum
        plain = chain()
        plain(each).backward(top)
        expected.append([p.grad for p in plain.parameters()])
    right = [torch.stack(grads).sum(0).chunk(size)[rank] for grads in zip(*expected, strict=True)]
    rows = []
    for way in ways:
        if talk and rank == 0:
            print(way, flush=True)
        torch_compat.dynamo_reset()
        texts: list[str] = []
        model: Any = gathered(chain())
        with (
            quiet_stderr(),
            torch_compat.no_compile_caches(),
            torch_compat.stated_hardware(),
            torch_compat.patched("inductor.config", **torch_compat.no_default_overlap() | _settings(way)),
        ):
            backend = torch_compat.inductor_code(texts, execute)
            torch.compile(model, backend=backend, fullgraph=True)(x[rank]).backward(top)
        apart = max(
            float((p.grad - g).abs().max() / g.abs().max())
            for p, g in zip(model.parameters(), right, strict=True)
        )
        for name, text in zip(("forward", "backward"), texts, strict=True):
            rows.append({"way": way, "pass": name, "calls": calls_of(text), "apart": apart})
    torch_compat.dynamo_reset()
    return rows


# --- in the kernel ---


def _report(found: PerRank[list[dict[str, Any]]], label: str, made: dict[str, Any]) -> Report:
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
    title, view = "Inductor's passes on gathered weights", "labkit.lessons.fsdp.figures:figure"
    return Report("training_passes", title, label, {"order": table}, [], made, notes, view)
