"""Rank 0 outside the mesh: who compiles, who calls what on which group, and what rank 0 costs in the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit import lessons
from labkit.contract import Plan
from labkit.experiments.options import on_cpu
from labkit.graphs import merge
from labkit.lessons.mesh import program as mesh_program
from labkit.lessons.mesh.declared import MESH_OR_WORLD as ABOUT
from labkit.lessons.mesh.program import AGAIN, EVERY, ONCE, OUTSIDE
from labkit.lessons.shared.model_size import check_split
from labkit.ranks import Ranks
from labkit.report import PerRank, Report, provenance
from labkit.timing import Verdict, by_slowest, check_rounds, compare, noise_floor

cliff = lessons.program("cliff")
RANKS = 3
PLANS = (
    Plan.of("infer", calls=1, phases={"tokens": 4}, index=-1),
    *(Plan.of("infer", calls=1, phases={"tokens": 4}, index=i) for i in range(2)),
    Plan.of("infer", calls=2, phases={"tokens": 8}, index=2),
    Plan.of("noop", index=3),
    Plan.of("infer", calls=1, phases={"tokens": 4}, index=4),
    Plan.of("shutdown", index=5),
)
TOLERANCE = 1e-4


def run(
    ranks: Ranks,
    *,
    blocks: int = 1,
    driver_ms: Sequence[float] = (0.0, 5.0),
    steps: int = 3,
    rounds: int = 16,
    talk: bool = False,
) -> Report:
    """Serve seven plans of rank 0's on a mesh of all other ranks, then time rank 0 outside the step and inside it.

    blocks: of the tensor-parallel model, four all-reduces each.
    driver_ms: what rank 0 has to do of its own in each step, a sleep. steps: in a sample. rounds: of the timing; 0
    leaves it out.

    Tables: `counts` (a row a rank: role, graphs, regions, breaks, recompiles, collectives by group), `groups` (rank,
    call, group, op, calls), `heard` (rank, call, action, x, compiled), `health` (within which ranks, what was said),
    `segments`, `events` and `breaks` of the served calls, and `samples` (evidence, variant, rank, round, seconds a
    step). Times are those of the slowest mesh rank. Raises ValueError for fewer than three ranks, before any is asked.

    >>> with Ranks(3, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, rounds=0)
    >>> report.frame[["rank", "role", "graphs", "mesh"]].to_dict("split")["data"]
    [[0, 'driver', 0, 0], [1, 'mesh', 2, 24], [2, 'mesh', 2, 24]]
    """
    check(ranks)
    if rounds:
        check_rounds(rounds)
    if steps < 1 or not driver_ms or min(driver_ms) < 0:
        raise ValueError(
            f"steps is at least 1 and driver_ms are times of 0 or more, got {steps} and {driver_ms}"
        )
    members = ranks.world_size - 1
    config = cliff.Config(dim=32 * members, heads=members, blocks=blocks, tokens=4)
    check_split(config, members)
    plans = [
        replace(plan, tensors={"x": f"(1, {plan.phases['tokens']}, {config.dim}) float32"})
        if "tokens" in plan.phases
        else plan
        for plan in PLANS
    ]
    served, timed = ranks.run(mesh_program.serve, config, plans, timeout=300), None
    if rounds:
        timed = ranks.run(mesh_program.cost, config, tuple(driver_ms), steps, rounds, timeout=300)
    settings = {
        "backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size,
        "threads": ranks.threads, "blocks": blocks, "compiler": "eager", "driver_ms": list(driver_ms),
        "steps": steps, "rounds": rounds,
    }  # fmt: skip
    return _report(served, timed, config, ranks.label, provenance(**settings))


def check(ranks: Ranks) -> None:
    """Raise ValueError unless there is a rank to stay outside and a mesh of two, on the CPU."""
    if ranks.world_size < RANKS:
        raise ValueError(
            f"rank 0 stays outside and a mesh needs two ranks: give {RANKS} ranks or more, got {ranks.world_size}"
        )
    on_cpu(ranks)


def _report(
    served: PerRank[dict[str, Any]],
    timed: PerRank[dict[str, Any]] | None,
    config: Any,
    label: str,
    settings: dict[str, Any],
) -> Report:
    record = merge(found["record"] for found in served)
    groups = pd.DataFrame(
        [{"rank": rank, **row} for rank, found in served.items() for row in found["groups"]],
        columns=["rank", "call", "group", "op", "calls"],
    )
    heard = pd.DataFrame([{"rank": rank, **row} for rank, found in served.items() for row in found["heard"]])
    tables: dict[str, pd.DataFrame] = {
        "counts": _counts(served, record, groups),
        "groups": groups,
        "heard": heard,
        "health": _health(served),
        "segments": record.segments,
        "events": record.events,
        "breaks": record.breaks.drop(columns="text", errors="ignore"),
    }
    verdicts: list[Verdict] = []
    notes = _notes(served)
    if timed is not None:
        tables["samples"] = _samples(timed)
        verdicts = _verdicts(tables["samples"])
        worst = max(error for found in timed for error in found["errors"].values())
        agree = "agree" if worst <= TOLERANCE else "DO NOT AGREE"
        notes.append(f"results of all forms {agree} with the unsharded model: largest difference {worst:.1e}")
    view = "labkit.lessons.mesh.figures:figure"
    return Report("mesh_or_world", ABOUT.title, label, tables, verdicts, settings, notes, view)


def _counts(served: PerRank[dict[str, Any]], record: Any, groups: pd.DataFrame) -> pd.DataFrame:
    rows = []
    regions = record.events[record.events["kind"] == "region"].groupby("rank").size()
    for rank, found in served.items():
        mine = groups[groups["rank"] == rank].groupby("group")["calls"].sum()
        rows.append(
            {
                "rank": rank, "role": "mesh" if rank else "driver", **found["health"],
                "regions": int(regions.get(rank, 0)),
                "world": int(mine.get("world", 0)), "mesh": int(mine.get("mesh", 0)),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _health(served: PerRank[dict[str, Any]]) -> pd.DataFrame:
    """What a comparison of compile health says within the mesh and within the world, once for each that differs."""
    size = len(list(served))
    rows = []
    for within, members in (("mesh", range(1, size)), ("world", range(size))):
        said = list(dict.fromkeys(served[rank][f"in the {within}"] for rank in members))
        rows += [{"within": within, "ranks": ", ".join(map(str, members)), "said": one} for one in said]
    return pd.DataFrame(rows)


def _samples(timed: PerRank[dict[str, Any]]) -> pd.DataFrame:
    rows = []
    for rank, found in timed.items():
        for name, seconds in found["samples"].items():
            form, _, ms = name.partition("|")
            evidence = f"rank 0 has {ms} ms of its own to do in each step"
            rows += [(evidence, float(ms), form, rank, i, s) for i, s in enumerate(seconds)]
    return pd.DataFrame(rows, columns=["evidence", "busy_ms", "variant", "rank", "round", "seconds"])


def _verdicts(samples: pd.DataFrame) -> list[Verdict]:
    """Each form with rank 0 in the step against rank 0 outside, held against how far 'outside' strays from itself."""
    found = []
    for ms, rows in samples[samples["rank"] > 0].groupby("busy_ms", sort=False):
        taken = by_slowest(rows, "variant")
        floor = noise_floor(taken[AGAIN], taken[OUTSIDE])
        found += [
            compare(taken[form], taken[OUTSIDE], floor=floor, case={"busy_ms": float(ms)})
            for form in (ONCE, EVERY)
        ]
    return found


def _notes(served: PerRank[dict[str, Any]]) -> list[str]:
    mesh = [found for rank, found in served.items() if rank]
    alike = len({str((f["health"], f["groups"], f["heard"])) for f in mesh}) == 1
    notes = [
        f"the mesh ranks are {'alike' if alike else 'NOT ALIKE'}: plans, graphs and collectives by group"
    ]
    answers = [[a for a in found["answers"] if a is not None] for found in served]
    near = all(
        abs(a - b) <= TOLERANCE for other in answers[1:] for a, b in zip(answers[0], other, strict=True)
    )
    notes.append(f"rank 0 {'has' if near else 'DOES NOT HAVE'} what the mesh computed, in every call")
    return notes
