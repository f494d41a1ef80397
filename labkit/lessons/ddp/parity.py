"""Every route beside one process: the same losses and gradients, and what each needs for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch

from labkit import torch_compat
from labkit.graphs import record
from labkit.lessons.ddp import data
from labkit.lessons.ddp.kinds import ALONE, ROUTES, Route, choose
from labkit.lessons.ddp.model import Sizes
from labkit.lessons.ddp.routes import build
from labkit.lessons.shared.capture import Capture
from labkit.lessons.shared.memory import peak
from labkit.lessons.shared.options import whole
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import PerRank, Report, provenance
from labkit.trace.events import collective_op

__all__ = ["RATE", "TOLERANCE", "run"]

# float32; of the largest gradient of the same parameter. Summed in another order: 4e-7 here, 70 % for what is wrong
ROUTE_RANKS = 2  # data x tensor parallel alone has 4
TOLERANCE = 1e-5
RATE, STEPS = 0.1, 3
BATCH = 64  # images a step, over all ranks
MEMORY = ("parameters", "gradients", "Adam's moments", "peak of a step")


def run(ranks: Ranks, routes: Sequence[str] = (), *, steps: int = STEPS, talk: bool = False) -> Report:
    """Train the same model on the same batches by every route, and compare with one process after each step.

    Graphs are AOTAutograd's, run as they are. A route that needs another number
    of ranks has gloo ranks of its own. Tables: `routes` (differences of loss and gradients, relative to the largest
    gradient of the same parameter; graphs; breaks, regions and collectives a step), `collectives` (kind by kind),
    `losses` (every step), `memory` (bytes by rank). Raises ValueError for a route or size that does not exist, before
    anything runs, and RankError when a rank fails.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     run(ranks, ["DDP, eager"], steps=2).frame[["route", "equal", "breaks"]]
           route  equal  breaks
    0  DDP, eager   True       0
    """
    chosen = [route for route in choose(routes) if route.name != ALONE]
    whole(steps=steps)
    if ranks.world_size != ROUTE_RANKS:
        raise ValueError(
            f"the routes are for {ROUTE_RANKS} ranks (one of them brings 4), and these are {ranks.world_size}"
        )
    images, labels = data.digits()
    found: dict[str, PerRank[dict[str, Any]]] = {}
    for route in chosen:
        began, arguments = time.perf_counter(), (route.name, images, labels, steps)
        if route.ranks == ranks.world_size:
            found[route.name] = ranks.run(measure, *arguments, timeout=300)
        else:
            with Ranks(route.ranks, "cpu", "gloo", threads=ranks.threads, quiet=True) as own:
                found[route.name] = own.run(measure, *arguments, timeout=300)
        if talk:
            print(f"{time.perf_counter() - began:5.1f} s  {route.name}", flush=True)
    made = {"backend": ranks.backend, "device": ranks.device, "threads": ranks.threads, "batch": BATCH}
    return _report(chosen, found, ranks.label, provenance(**made, steps=steps, **asdict(Sizes())))


# --- on a rank ---


def measure(name: str, images: Any, labels: Any, steps: int) -> dict[str, Any]:
    """Train one route and the plain model beside it, then record one step and look at its memory."""
    images, labels = data.on_device(images, labels)
    torch_compat.dynamo_reset()
    seen, captured = Capture(aot=True), Capture()
    with quiet_stderr(), torch_compat.quiet_dynamo():  # gloo and DDP's wrapper warn of what the report says
        alone, route = build(ALONE, Sizes()), build(name, Sizes(), seen, captured=captured)
        try:
            began = time.perf_counter()
            losses: list[float] = []
            reference: list[float] = []
            for step in range(steps):
                index = data.batch(step, BATCH, len(images) - data.HELD_OUT)
                for trainer, into in ((alone, reference), (route, losses)):
                    if step:
                        _descend(trainer)
                    trainer.model.zero_grad()
                    into.append(float(trainer.backward(images[index], labels[index])))
                if not step:
                    first = time.perf_counter() - began
            expected, got = alone.gradients(), route.gradients()
            apart = {
                n: float((got[n] - g).abs().max() / g.abs().max()) for n, g in expected.items() if n in got
            }
            with record() as rec:
                with rec.forward():
                    route.model.zero_grad()
                    route.backward(images[index], labels[index])
            memory = _memory(route, lambda: route.backward(images[index], labels[index]))
        finally:
            route.close()
    counts = rec.counts().iloc[0]
    return {
        "loss": losses,
        "reference": reference,
        "share": route.data[0],
        "shares": route.data[1],
        "missing": sorted(set(expected) - set(got)),
        "apart": apart,
        "first_s": first,
        "graphs": [len(seen.forward), len(captured.dynamo) or len(seen.backward)],
        "regions": int(counts["regions"]),
        "breaks": int(counts["breaks"]),
        "skips": int(counts["skips"]),
        "collectives": _collectives(rec),
        "memory": memory,
    }


def held(tensors: Iterable[Any]) -> int:
    """Bytes of tensors on this rank: of a DTensor its own piece, of a memory that several share once.

    >>> import torch
    >>> x = torch.ones(4)
    >>> held([x, x.view(2, 2), torch.ones(2)])
    24
    """
    found = {}
    for tensor in tensors:
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = own.untyped_storage()
        found[storage.data_ptr(), storage.nbytes()] = storage.nbytes()
    return sum(found.values())


def _descend(trainer: Any) -> None:
    """One step of gradient descent. Not torch.optim: a plain line serves DTensors, pieces and whole weights alike."""
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter -= RATE * parameter.grad


def _collectives(rec: Any) -> dict[str, int]:
    names = rec.events.query("kind == 'collective' and forward >= 0")["name"]
    return names.map(collective_op).value_counts().to_dict()


def _memory(trainer: Any, step: Any) -> dict[str, int]:
    parameters = list(trainer.model.parameters())
    kept = held(parameters)
    gradients = held(p.grad for p in parameters if p.grad is not None)
    optimizer = torch.optim.Adam(parameters, foreach=False)
    optimizer.step()
    moments = held(t for state in optimizer.state.values() for t in state.values() if t.dim())
    trainer.model.zero_grad()
    return dict(zip(MEMORY, (kept, gradients, moments, peak(step)), strict=True))


# --- in the kernel ---


def _report(
    chosen: list[Route], found: dict[str, PerRank[dict[str, Any]]], label: str, settings: dict[str, Any]
) -> Report:
    rows, losses, kinds, memory = [], [], [], []
    for route in chosen:
        seen = found[route.name]
        first = seen[0]
        # ranks with the same part of the batch have the same loss: one of each counts
        parts = {one["share"]: one["loss"] for one in seen}
        mean = [sum(values) / len(values) for values in zip(*parts.values(), strict=True)]
        off = max(abs(a - b) for a, b in zip(mean, first["reference"], strict=True))
        apart = max(max(one["apart"].values(), default=float("inf")) for one in seen)
        missing = sorted({name for one in seen for name in one["missing"]})
        alike = all(one["graphs"] == first["graphs"] and one["breaks"] == first["breaks"] for one in seen)
        rows.append(
            {
                "route": route.name,
                "equal": not missing and off <= TOLERANCE * first["reference"][0] and apart <= TOLERANCE,
                "loss apart": off,
                "gradients apart": apart,
                "forward graphs": first["graphs"][0],
                "backward graphs": first["graphs"][1],
                "breaks": first["breaks"],
                "given up": first["skips"],
                "regions": first["regions"],
                "collectives": sum(first["collectives"].values()),
                "ranks": len(seen),
                "ranks alike": alike,
                "first step, s": max(one["first_s"] for one in seen),
            }
        )
        pairs = enumerate(zip(mean, first["reference"], strict=True))
        losses += [(route.name, i, value, ref) for i, (value, ref) in pairs]
        kinds += [(route.name, kind, count) for kind, count in first["collectives"].items()]
        for rank, one in seen.items():
            memory += [(route.name, rank, what, size) for what, size in one["memory"].items()]
    table = pd.DataFrame(rows)
    tables = {
        "routes": table,
        "collectives": pd.DataFrame(kinds, columns=["route", "collective", "a step"]),
        "losses": pd.DataFrame(losses, columns=["route", "step", "loss", "one process"]),
        "memory": pd.DataFrame(memory, columns=["route", "rank", "what", "bytes"]),
    }
    wrong = table.loc[~table["equal"], "route"].tolist()
    notes = [
        f"loss and gradients of {len(table) - len(wrong)} of {len(table)} routes are those of one process: within "
        f"{TOLERANCE:.0e} of the largest gradient of the same parameter"
    ]
    if wrong:
        notes.append(f"DIFFERENT: {', '.join(wrong)}")
    notes += [
        f"{route.name} brings {route.ranks} ranks of its own, on the CPU over gloo"
        for route in chosen
        if settings["device"] != "cpu" and len(found[route.name]) > ROUTE_RANKS
    ]
    title, view = "Routes to train on several ranks", "labkit.lessons.ddp.figures:figure"
    return Report("training", title, label, tables, [], settings, notes, view)


def advice(report: Report) -> pd.DataFrame:
    """What each route of a report costs here, as counted, and when to take it."""
    table = report.tables["routes"]
    held = report.tables["memory"].query("rank == 0").pivot(index="route", columns="what", values="bytes")
    rows = []
    for row in table.to_dict("records"):
        route = ROUTES[row["route"]]
        kept = held.loc[row["route"], list(MEMORY[:3])].sum() / 1e3
        rows.append(
            {
                "route": row["route"],
                "graphs": f"{row['forward graphs']} + {row['backward graphs']}",
                "breaks": row["breaks"] + row["given up"],
                "collectives a step": row["collectives"],
                "kept, kB a rank": round(kept),
                "it costs": route.cost,
                "take it": route.take,
            }
        )
    return pd.DataFrame(rows)
