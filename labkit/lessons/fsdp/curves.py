"""Training to the end: loss curves by route, as they grow, and whether the ranks still hold the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from labkit import torch_compat
from labkit.lessons.fsdp.routes import TRAP
from labkit.lessons.shared import training as data
from labkit.lessons.shared.options import whole
from labkit.lessons.shared.training import Route
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import Ranks, here
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.torch_compat import quiet_dynamo

__all__ = ["run"]

BATCH = 64
TIMEOUT_S = 300.0
ALONE = "one process"
_running: dict[str, Any] = {}  # on a rank: what is trained between two calls


def run(
    ranks: Ranks, *, steps: int = 120, every: int = 20, seen: Callable[[Report], Any] | None = None
) -> Report:
    """Train by each route of `TRAP`, and in one process beside them, with gradient descent; all see the same batches.

    every: steps between two looks; `seen(report)` is called with the curves so far after each, to draw them growing.
    Tables: `curves` (route, step, loss), `summary` (loss at the end, share of 297 held-out images that are recognized,
    how far the ranks' copies of the first layer are apart). Raises ValueError for what cannot be run, before anything
    runs, and RankError when a rank fails.

    >>> from labkit.lessons.fsdp import curves
    >>> curves.run(None, steps=10, every=20)
    Traceback (most recent call last):
    ValueError: every must be a whole number from 1 to steps=10, got 20
    """
    whole(steps=steps)
    if not isinstance(every, int) or not 1 <= every <= steps:
        raise ValueError(f"every must be a whole number from 1 to steps={steps}, got {every!r}")
    names = [ALONE, *TRAP]
    images, labels = data.digits()
    made = provenance(backend=ranks.backend, device=ranks.device, steps=steps, batch=BATCH)
    losses: dict[str, list[float]] = {name: [] for name in names}
    ranks.run(_begin, names, images, labels, timeout=TIMEOUT_S)
    for start in range(0, steps, every):
        stop = min(start + every, steps)
        for name in names:
            parts = {
                share: values for share, values in ranks.run(_go_on, name, start, stop, timeout=TIMEOUT_S)
            }
            losses[name] += [sum(each) / len(parts) for each in zip(*parts.values(), strict=True)]
        last = stop == steps
        ends = {name: list(ranks.run(_look, name, timeout=TIMEOUT_S)) for name in names} if last else {}
        report = _report(losses, ends, ranks.label, made)
        if seen is not None:
            seen(report)
    ranks.run(_end)
    return report


# --- on a rank; what is trained stays here from call to call ---


def _begin(names: list[str], images: Any, labels: Any) -> None:
    _end()
    torch_compat.dynamo_reset()
    _running["data"] = data.on_device(images, labels)
    _running["trainers"] = {
        name: TRAP[name](None, "aot_eager")
        if name in TRAP
        else Route(with_own_code(Model(Sizes())).to(here().device), share=(0, 1))
        for name in names
    }


def _go_on(name: str, start: int, stop: int) -> tuple[int, list[float]]:
    (images, labels), trainer = _running["data"], _running["trainers"][name]
    losses = []
    with quiet_stderr(), quiet_dynamo():  # the trap's only sign is a warning, once; the lesson shows it
        for step in range(start, stop):
            index = data.batch(step, BATCH, len(images) - data.HELD_OUT)
            trainer.model.zero_grad()
            losses.append(float(trainer.backward(images[index], labels[index])))
            trainer.descend()
    return (trainer.share or (0, 1))[0], losses


def _look(name: str) -> dict[str, float]:
    (images, labels), trainer = _running["data"], _running["trainers"][name]
    with torch.no_grad(), quiet_dynamo():
        logits = (trainer.forward or trainer.model)(images[-data.HELD_OUT :])
        first = next(p for n, p in trainer.model.named_parameters() if n.endswith("first.weight"))
        whole = trainer.whole("first.weight", first.detach()).clone()
        zero = whole.clone()
        dist.broadcast(zero, 0)
    recognized = float((logits.argmax(-1) == labels[-data.HELD_OUT :]).float().mean())
    return {"recognized": recognized, "apart": float((whole - zero).abs().max())}


def _end() -> None:
    _running.clear()


# --- in the kernel ---


def _report(
    losses: dict[str, list[float]], ends: dict[str, list[dict[str, float]]], label: str, made: Any
) -> Report:
    curves = pd.DataFrame(
        [(name, i + 1, value) for name, values in losses.items() for i, value in enumerate(values)],
        columns=["route", "step", "loss"],
    )
    rows = []
    for name, values in losses.items():
        each = ends.get(name, [])
        row = {"route": name, "steps": len(values), "loss": values[-1]}
        if each:
            row |= {"recognized": each[0]["recognized"], "recognized, last rank": each[-1]["recognized"]}
            row["ranks apart by"] = max(one["apart"] for one in each)
        rows.append(row)
    tables = {"summary": pd.DataFrame(rows), "curves": curves}
    return Report(
        "training_curves",
        "Learning curves",
        label,
        tables,
        [],
        made,
        [],
        "labkit.lessons.fsdp.figures:figure",
    )
