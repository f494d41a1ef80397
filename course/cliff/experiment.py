"""The graph-break cliff: what hiding 160 collectives from the compiler costs, and what functional ones give back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pandas as pd

from course.cliff.declared import CLIFF as ABOUT
from course.shared import harness, reference
from course.shared.model_size import check_split
from course.shared.program import choose as choose_program
from course.shared.variants import Variant, choose
from labkit.graphs import merge
from labkit.ranks import Ranks
from labkit.report import PerRank, Report, provenance
from labkit.timing import Verdict, check_rounds, compare_all

PAIRS = (("C", "B"), ("B", "A"), ("C", "A"), ("D", "A"), ("E", "C"))
NEEDED = ("Config", "full", "shard", "inplace", "disabled", "functional")  # what is taken of the program
TOLERANCE = 1e-4  # float32, forty blocks, sums in another order than the unsharded model


def run(
    ranks: Ranks,
    blocks: int = 40,
    *,
    variants: str = "ABCDE",
    program: Any = None,
    dim: int = 64,
    heads: int = 2,
    tokens: int = 4,
    rounds: int = 30,
    reduces: Mapping[str, Callable[..., Any]] | None = None,
    host_only: bool = True,
    regional: bool = False,
    also: tuple[str, ...] = (),
    elsewhere: str | None = None,
    cold: bool = False,
    timeout: float | None = 900.0,
    talk: bool = False,
) -> Report:
    """Run the variants on `ranks` and report counts per forward, host time and time on the ranks, never mixed.

    blocks: transformer blocks, four all-reduces each (40 are the source's ~160). variants: letters of A eager in
    place, B compiled with the collective disabled, C compiled functional, D eager functional, E compiled in place.
    program: the model and the all-reduces, as a module or a mapping such as a notebook's `globals()`; None is the
    lesson's own.
    dim, heads, tokens: the model's size; small, so that what is measured is not the matrix products. rounds:
    interleaved timing rounds. reduces: {letter: all-reduce function} to try your own in a variant's place.
    host_only: measure as well on a fake process group that moves nothing. also: further backends to time on the
    same device, such as ('gloo',). elsewhere: letters of the variants measured on those and host only, when not
    all of them are wanted there. regional: time the first call with blocks compiled one by one. cold: compile on
    new ranks from an empty cache of Inductor's, so that first calls cost what they cost on a new machine; what
    the C++ compiler can do there is found out before, or the first variant would pay for all.

    Times are seconds; a round's time is that of its slowest rank. Raises ValueError for a size or a variant that
    does not exist, before anything runs, and RankError when a rank fails.

    >>> from course.cliff import experiment as cliff
    >>> with Ranks(2, device="cpu", backend="shm", quiet=True) as ranks:
    ...     report = cliff.run(ranks, blocks=1, variants="AD", rounds=3, host_only=False)
    >>> report.tables["counts"].loc[:, ["variant", "rank", "collectives"]]
      variant  rank  collectives
    0       A     0            4
    1       A     1            4
    2       D     0            4
    3       D     1            4
    """
    chosen = choose(variants)
    ours = choose_program("cliff", program, NEEDED)
    config = ours.code.Config(dim=dim, heads=heads, blocks=blocks, tokens=tokens)
    check_split(config, ranks.world_size)
    check_rounds(rounds)
    unknown = set(reduces or {}) - {v.letter for v in chosen}
    if unknown:
        raise ValueError(f"reduces names variant {min(unknown)!r}, which is not among {variants!r}")
    others = chosen if elsewhere is None else choose(elsewhere)
    foreign = [v.letter for v in others if v not in chosen]
    if foreign:
        raise ValueError(f"elsewhere names variant {foreign[0]!r}, which is not among {variants!r}")
    settled = (ours.code, config, rounds, dict(reduces or {}))
    if cold:
        ranks.restart()  # what a process has compiled, it keeps in memory as well
    with tempfile.TemporaryDirectory(prefix="labkit-inductor-") if cold else nullcontext() as cache:
        main = ranks.run(harness.measure, chosen, *settled, regional, talk, cache, timeout=timeout)
        runs = {ranks.label: main}
        for backend in [*also, *(["fake"] if host_only and ranks.backend != "fake" else [])]:
            device = "cpu" if backend == "fake" else ranks.device
            with Ranks(ranks.world_size, device, backend, threads=ranks.threads, quiet=True) as more:
                if more.label not in runs:
                    given = (others, *settled, False, talk, cache, False)  # the records of `ranks` are enough
                    runs[more.label] = more.run(harness.measure, *given, timeout=timeout)
    settings = {
        "backend": ranks.backend,
        "device": ranks.device,
        "world_size": ranks.world_size,
        "threads": ranks.threads,
        "rounds": rounds,
        "cold": cold,
        "program": ours.digest,
        "model": {"blocks": blocks, "dim": dim, "heads": heads, "tokens": tokens},
    }
    return _report(chosen, runs, ranks.label, blocks, provenance(**settings), ours.notes)


def _report(
    variants: list[Variant],
    runs: dict[str, PerRank[dict[str, Any]]],
    label: str,
    blocks: int,
    settings: dict[str, Any],
    notes: list[str],
) -> Report:
    main = runs[label]
    per_variant: dict[str, list[pd.DataFrame]] = {
        n: [] for n in ("counts", "breakdown", "segments", "breaks", "graphs")
    }
    for variant in variants:
        record = merge(found["records"][variant.letter] for found in main)
        middle = _typical_forward(record.segments)
        one = record.segments[record.segments["forward"] == middle]
        own = {(rank, i) for rank, found in main.items() for i in found["compiles"][variant.letter]}
        places = zip(record.breaks["rank"], record.breaks["compile_id"], strict=True)
        # a plain list of booleans, where it is empty, would choose columns
        breaks = record.breaks[pd.Series([place in own for place in places], record.breaks.index, dtype=bool)]
        skips = breaks[breaks["kind"] == "skip"].groupby("rank").size()
        counts = record.counts()
        tables = {
            "counts": counts.assign(skips=counts["rank"].map(skips).fillna(0).astype(int)),
            "breakdown": record.breakdown().query("forward == @middle"),
            "segments": one,
            "breaks": breaks,
            "graphs": record.graphs.drop(columns=["code", "aot_code", "inductor_code"], errors="ignore"),
        }
        for name, table in tables.items():
            per_variant[name].append(table.assign(variant=variant.letter))
    tables = {
        name: _variant_first(pd.concat(parts, ignore_index=True)) for name, parts in per_variant.items()
    }
    tables["breaks"] = tables["breaks"].drop(columns="text", errors="ignore")
    tables["samples"] = _samples(runs, variants)
    tables["cold"] = _cold(runs, variants)
    tables["source"] = reference.load("scope_runs")
    verdicts = _verdicts(tables["samples"], variants)
    letters = {variant.title: variant.letter for variant in variants}
    tables["verdicts"] = pd.DataFrame(
        [{**verdict.row(), "a": letters[verdict.a], "b": letters[verdict.b]} for verdict in verdicts]
    )
    tables = {"summary": _summary(tables, variants), **tables}
    for name in ("counts", "samples", "breakdown", "segments", "breaks"):
        tables[name].insert(0, "blocks", blocks)
    notes = [*notes, *_notes(tables, variants, main)]
    return Report(
        "cliff", ABOUT.title, label, tables, verdicts, settings, notes, "course.cliff.figures:figure"
    )


def _variant_first(table: pd.DataFrame) -> pd.DataFrame:
    return table[["variant", *(column for column in table.columns if column != "variant")]]


def _typical_forward(segments: pd.DataFrame) -> int:
    """The recorded forward of middle length: the first one carries the profiler's own start-up."""
    ends = segments.groupby("forward").agg(start=("start_us", "min"), end=("end_us", "max"))
    lengths = (ends["end"] - ends["start"]).sort_values()
    return int(lengths.index[len(lengths) // 2])


def _samples(runs: dict[str, PerRank[dict[str, Any]]], variants: list[Variant]) -> pd.DataFrame:
    rows = [
        (evidence, variant.letter, number, rank, seconds)
        for evidence, found in runs.items()
        for variant in variants
        for rank, values in found.items()
        for number, seconds in enumerate(values["samples"].get(variant.letter, ()))
    ]
    return pd.DataFrame(rows, columns=["evidence", "variant", "round", "rank", "seconds"])


def _cold(runs: dict[str, PerRank[dict[str, Any]]], variants: list[Variant]) -> pd.DataFrame:
    """First calls, in the order in which they were made: later evidence finds Inductor's cache filled."""
    rows = []
    for evidence, found in runs.items():
        for rank, values in found.items():
            for variant in (v for v in variants if v.letter in values["first"]):
                first, cached, error = (values[key][variant.letter] for key in ("first", "cached", "error"))
                rows.append((evidence, variant.letter, rank, first, cached, error))
            if values["regional"] is not None:
                rows.append((evidence, "C, block by block", rank, values["regional"], None, None))
    return pd.DataFrame(rows, columns=["evidence", "variant", "rank", "first_call_s", "cached", "max_error"])


def _verdicts(samples: pd.DataFrame, variants: list[Variant]) -> list[Verdict]:
    titles = {variant.letter: variant.title for variant in variants}
    pairs = [(titles[a], titles[b]) for a, b in PAIRS if a in titles and b in titles]
    named = samples.assign(variant=samples["variant"].map(titles))
    groups = named.groupby("evidence", sort=False)
    return [verdict for evidence, rows in groups for verdict in compare_all(rows, pairs, str(evidence))]


def _summary(tables: dict[str, pd.DataFrame], variants: list[Variant]) -> pd.DataFrame:
    slowest = tables["samples"].groupby(["evidence", "variant", "round"], sort=False)["seconds"].max()
    counts = tables["counts"]
    rows = []
    for variant in variants:
        mine = counts[counts["variant"] == variant.letter]
        row: dict[str, Any] = {"variant": variant.title}
        for column in ("regions", "breaks", "collectives", "graphs", "static_breaks"):
            row[column] = _one_or_range(mine[column])
        for evidence in tables["samples"]["evidence"].unique():
            taken = slowest[evidence].get(variant.letter)
            if taken is None:
                row |= {f"{evidence}: ms": float("nan"), f"{evidence}: p10-p90": "not measured"}
                continue
            taken = taken * 1e3
            row[f"{evidence}: ms"] = round(float(taken.median()), 2)
            row[f"{evidence}: p10-p90"] = f"{taken.quantile(0.1):.2f}-{taken.quantile(0.9):.2f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _one_or_range(values: pd.Series) -> Any:
    """One number where the ranks agree, both where they do not: a count that hides a difference is a lie."""
    unique = sorted(values.unique())
    whole = [int(v) if float(v).is_integer() else round(float(v), 2) for v in unique]
    return whole[0] if len(whole) == 1 else " / ".join(map(str, whole))


def _notes(
    tables: dict[str, pd.DataFrame], variants: list[Variant], main: PerRank[dict[str, Any]]
) -> list[str]:
    notes = []
    counts = tables["counts"].set_index("variant")
    letters = {v.letter for v in variants}
    for letter in sorted(letters & {"C", "E"}):
        regions, breaks = counts.loc[[letter], "regions"], counts.loc[[letter], "breaks"]
        held = bool(
            (regions == 1).all() and (breaks == 0).all() and (counts.loc[[letter], "graphs"] == 1).all()
        )
        notes.append(f"{letter}: 1 graph, 0 breaks on every rank: {'holds' if held else 'DOES NOT HOLD'}")
    if "E" in letters and counts.loc[["E"], "breaks"].sum() == 0:
        notes.append(
            "E: this torch rewrites a plain in-place all_reduce into the functional form and a copy back"
        )
    errors = [e for found in main for e in found["error"].values() if e is not None]
    if errors:
        agree = "agree" if max(errors) <= TOLERANCE else "DO NOT AGREE"
        notes.append(
            f"outputs {agree} with the unsharded model: largest difference {max(errors):.1e}, tolerance {TOLERANCE:.0e}"
        )
    return notes
