"""DTensor or explicit: one program by four routes, eager and compiled, in counts, bytes and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from course.dtensor import on_ranks as routes_ranks
from course.dtensor.declared import ROUTES as ABOUT
from course.shared.options import chosen
from course.shared.program import choose as choose_program
from labkit.ranks import Ranks
from labkit.report import HOST_ONLY, PerRank, Report, provenance
from labkit.timing import Verdict, by_slowest, check_rounds, compare

VIEW = "course.dtensor.figures:figure"
NEEDED = ("Block", "MLP", "seeded", "sample", "ROUTES")  # what is taken of the program
ROUTES = {"a": "explicit, in place", "b": "explicit, functional", "c": "DTensor", "d": "parallelize_module"}
# name: (dim, tokens) of four heads; the hidden size is four times dim
SIZES = {"tiny": (64, 4), "small": (128, 16), "medium": (256, 64), "large": (512, 256)}
# what is held against what: a route and a mode each
PAIRS = (
    ("b eager", "a eager"),
    ("c eager", "a eager"),
    ("d eager", "a eager"),
    ("c compiled", "c eager"),
    ("d compiled", "d eager"),
    ("c compiled", "b compiled"),
    ("d compiled", "b compiled"),
    ("b compiled", "a eager"),
)
TOLERANCE = 1e-4  # float32: sums in another order than the unsharded model


def run(
    ranks: Ranks,
    mlp: Sequence[str] = ("tiny", "medium", "large"),
    block: Sequence[str] = ("tiny",),
    *,
    rounds: int = 15,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Run each route of lesson 10's program, eager and compiled, on the ranks and without communication.

    mlp, block: names of SIZES, at which each kind of layer is run; none leaves it out. program: the cells of lesson 10,
    as a module or a mapping such as a notebook's `globals()`; None is the lesson's own.
    Rank 0 runs on a fake group as well, where nothing is sent: what remains is the host's time.

    Tables: `summary`; `samples` (seconds of every rank); `counts` by rank and forward; `eager` (a forward's
    collectives, bytes, DTensor operations, and rules worked out by the first one); `graphs` (collectives and bytes in
    the compiled graph of each kind's first size); `verdicts`. `bytes` are those of the tensors that
    go into collectives on one rank.

    Raises ValueError for an unknown size or kind, before anything runs, and RankError when a rank fails.

    >>> run(None, mlp=["huge"])
    Traceback (most recent call last):
        ...
    ValueError: unknown size 'huge': there is tiny, small, medium, large
    """
    check_rounds(rounds)
    chosen((*mlp, *block), SIZES, "size")
    cases = [("mlp", size) for size in mlp] + [("block", size) for size in block]
    if not cases:
        raise ValueError("nothing to run: give at least one size of mlp or of block")
    plan = [(kind, size, *SIZES[size]) for kind, size in cases]
    ours = choose_program("dtensor", program, NEEDED)
    found = ranks.run(routes_ranks.measure, ours.code, plan, rounds, talk, timeout=600)
    with Ranks(ranks.world_size, "cpu", "fake", threads=ranks.threads, quiet=True) as fake:
        alone = fake.run(routes_ranks.alone, ours.code, plan, rounds, ranks=0, timeout=600)[0]
    settings = {
        "backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size, "threads": ranks.threads,
        "rounds": rounds, "layers": 1, "sizes": {name: SIZES[name] for _, name in cases},
        "program": ours.digest,
    }  # fmt: skip
    return _report(found, alone, cases, ranks.label, provenance(**settings), ours.notes)


def _report(
    found: PerRank[dict[str, Any]],
    alone: Any,
    cases: list[tuple[str, str]],
    label: str,
    settings: dict[str, Any],
    notes: list[str],
) -> Report:
    samples = pd.DataFrame(
        [
            (evidence, *case, way, rank, number, seconds)
            for evidence, runs in ((label, dict(found.items())), (HOST_ONLY, {0: alone}))
            for rank, one in runs.items()
            for case in cases
            for way, taken in one["samples"].get(case, {}).items()
            for number, seconds in enumerate(taken)
        ],
        columns=["evidence", "kind", "size", "way", "rank", "round", "seconds"],
    )
    counts = pd.DataFrame(
        [
            {"kind": kind, "size": size, "way": way, "rank": rank, **row}
            for rank, one in found.items()
            for (kind, size), ways in one["counts"].items()
            for way, row in ways.items()
        ]
    )
    graphs = pd.DataFrame(alone["graphs"])
    verdicts = _verdicts(samples)
    tables: dict[str, pd.DataFrame] = {
        "summary": _summary(samples, counts, graphs, alone),
        "samples": samples,
        "counts": counts,
        "graphs": graphs,
        "verdicts": pd.DataFrame([verdict.row() for verdict in verdicts]),
        "eager": pd.DataFrame(alone["eager"]),
    }
    return Report("routes", ABOUT.title, label, tables, verdicts, settings, [*notes, *_notes(counts)], VIEW)


def _verdicts(samples: pd.DataFrame) -> list[Verdict]:
    verdicts = []
    for (evidence, kind, size), rows in samples.groupby(["evidence", "kind", "size"], sort=False):
        taken, case = by_slowest(rows, "way"), {"kind": kind, "size": size}
        there = [(taken[a], taken[b]) for a, b in PAIRS if a in taken and b in taken]
        verdicts += [compare(a, b, evidence=evidence, case=case) for a, b in there]
    return verdicts


def _summary(
    samples: pd.DataFrame, counts: pd.DataFrame, graphs: pd.DataFrame, alone: dict[str, Any]
) -> pd.DataFrame:
    worst = samples.groupby(["evidence", "kind", "size", "way", "round"], sort=False)["seconds"].max()
    median = worst.groupby(["evidence", "kind", "size", "way"], sort=False).median() * 1e3
    eager = {(row["kind"], row["size"], row["route"]): row for row in alone["eager"]}
    rows = []
    for (kind, size, way), mine in counts.groupby(["kind", "size", "way"], sort=False):
        route, mode = way.split(" ")
        row = {
            "kind": kind,
            "size": size,
            "route": f"{route} {ROUTES.get(route, 'of your own')}",
            "mode": mode,
        }
        if mode == "compiled":
            graph = graphs[(graphs["kind"] == kind) & (graphs["size"] == size) & (graphs["route"] == route)]
            if graph.empty:  # graphs are kept of the first size: of others, what was called
                row |= {"collectives": int(mine["collectives"].max()), "bytes": None}
            else:
                row |= {"collectives": int(graph["collectives"].sum()), "bytes": int(graph["bytes"].sum())}
        else:
            row |= {name: eager[kind, size, route][name] for name in ("collectives", "bytes")}
        row |= mine[["regions", "breaks", "error"]].max().to_dict()
        for evidence in samples["evidence"].unique():
            value = median.get((evidence, kind, size, way))
            row[f"{evidence}: ms"] = None if value is None else round(float(value), 3)
        rows.append(row)
    return pd.DataFrame(rows)


def _notes(counts: pd.DataFrame) -> list[str]:
    compiled = counts[counts["way"].str.endswith("compiled")]
    whole = bool((compiled["regions"] == 1).all() and (compiled["breaks"] == 0).all())
    error = float(counts["error"].max())
    agree = "agree" if error <= TOLERANCE else "DO NOT AGREE"
    return [
        f"every compiled route: 1 region, 0 breaks a forward, on every rank: {'holds' if whole else 'DOES NOT HOLD'}",
        f"outputs {agree} with the unsharded model: largest difference {error:.1e}, tolerance {TOLERANCE:.0e}",
    ]
