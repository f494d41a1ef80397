"""Rank 0 outside the mesh: who compiles, who calls what on which group, and what rank 0 costs in the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from course.mesh.declared import MESH_OR_WORLD as ABOUT
from course.shared.program import choose as choose_program
from labkit.experiments.options import on_cpu
from labkit.ranks import Ranks
from labkit.report import Report, provenance
from labkit.timing import Verdict, by_slowest, check_rounds, compare, noise_floor

__all__ = ["RANKS", "REQUESTS", "check", "run"]

NEEDED = ("serve", "both_verdicts", "cost", "STEPS")  # what is taken of the program
RANKS = 3
REQUESTS = (2, 4, 2)  # rows of each
FORMS = ("driver", "stage 0")  # what rank 0 is: it compiles nothing, or graphs of its own


def run(
    ranks: Ranks,
    *,
    own_ms: Sequence[float] = (0.0, 5.0),
    rounds: int = 16,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Serve requests on a mesh of all ranks but rank 0, then time rank 0 outside the mesh's collectives and in them.

    Tables: `counts` (form, rank, graphs, collectives by group), `calls` (of the driver's form: rank, number, group,
    operation), `health` (form, what is compared, within which ranks, what was found) and `samples` (evidence, own_ms,
    variant, rank, round, seconds a step).

    Args:
        ranks: three or more, on the CPU.
        own_ms: milliseconds of work that rank 0 has of its own in each step, a sleep.
        rounds: of the timing; 0 leaves it out.
        program: the cells of lesson 11, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.

    Raises:
        ValueError: fewer than three ranks, bad times or rounds; before any rank is asked.

    >>> with Ranks(3, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, rounds=0)
    >>> report.frame[["form", "rank", "graphs", "mesh"]].to_dict("split")["data"][:3]
    [['driver', 0, 0, 0], ['driver', 1, 2, 12], ['driver', 2, 2, 12]]
    """
    check(ranks)
    if rounds:
        check_rounds(rounds)
    if not own_ms or min(own_ms) < 0:
        raise ValueError(f"own_ms are times of 0 or more, got {own_ms}")
    ours = choose_program("mesh", program, NEEDED)
    mesh = ours.code
    counts, health, notes = [], [], list(ours.notes)
    served: dict[str, list[Any]] = {}
    for form in FORMS:
        served[form] = found = list(ranks.run(mesh.serve, list(REQUESTS), form != "driver"))
        for rank, one in enumerate(found):
            on = [group for group, _ in one["calls"]]
            row = {"form": form, "rank": rank, "graphs": len(one["graphs"])}
            counts.append(row | {group: on.count(group) for group in ("world", "mesh")})
        said = list(ranks.run(mesh.both_verdicts, found))[-1]  # a rank of both groups
        for asked, verdict in said.items():
            what, within = asked.split(", ")
            health.append({"form": form, "what": what, "within": within, "said": verdict})
        same = all(one["answers"] == found[0]["answers"] for one in found)
        notes.append(f"{form}: rank 0 {'has' if same else 'DOES NOT HAVE'} what the mesh computed")
    rows = [(r, i, *call) for r, one in enumerate(served["driver"]) for i, call in enumerate(one["calls"])]
    tables = {
        "counts": pd.DataFrame(counts),
        "calls": pd.DataFrame(rows, columns=["rank", "number", "group", "operation"]),
        "health": pd.DataFrame(health),
    }
    verdicts: list[Verdict] = []
    for ms in own_ms if rounds else ():
        evidence = f"rank 0 has {ms:g} ms of its own to do in each step"
        taken = ranks.run(mesh.cost, ms, rounds, timeout=300).frame()
        taken = taken.assign(evidence=evidence, own_ms=ms, seconds=taken["seconds"] / mesh.STEPS)
        tables["samples"] = pd.concat([tables.get("samples"), taken], ignore_index=True)
        by = by_slowest(taken[taken["rank"] > 0], "variant")
        floor = noise_floor(by["outside again"], by["outside"])
        verdicts.append(compare(by["in every collective"], by["outside"], floor=floor, case={"own_ms": ms}))
    facts = provenance(
        backend=ranks.backend, device=ranks.device, world_size=ranks.world_size, threads=ranks.threads,
        compiler="eager", own_ms=list(own_ms), rounds=rounds, program=ours.digest,
    )  # fmt: skip
    view = "course.mesh.figures:figure"
    return Report("mesh_or_world", ABOUT.title, ranks.label, tables, verdicts, facts, notes, view)


def check(ranks: Ranks) -> None:
    """Raise ValueError unless there is a rank to stay outside and a mesh of two, on the CPU."""
    if ranks.world_size < RANKS:
        raise ValueError(
            f"rank 0 stays outside and a mesh needs two ranks: give {RANKS} ranks or more, got {ranks.world_size}"
        )
    on_cpu(ranks)
