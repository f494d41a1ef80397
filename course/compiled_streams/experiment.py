"""Activation offloading at the slides' shapes: measured on a GPU; without one, modelled on the graphs of the passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from course.compiled_streams.declared import OFFLOAD as ABOUT
from course.compiled_streams.offload import NEEDED, Rates, modelled, traced
from course.shared import reference
from course.shared.program import choose
from labkit.ranks import RankError, Ranks
from labkit.report import MODELLED, Report, provenance
from labkit.timing import Verdict, check_rounds, compare_all, samples

__all__ = ["run"]

COLUMNS = ["shape", "way", "step_ms", "peak_mib", "saved_percent", "slower_percent"]


def run(
    ranks: Ranks,
    shape: Sequence[str] = ("Small",),
    *,
    deep: int | None = None,
    program: Any = None,
    rounds: int = 15,
    talk: bool = False,
) -> Report:
    """Compare a training step that keeps its activations with the ways to offload them.

    On a GPU the graphs of every way run as they are, in interleaved rounds, on rank 0; the peak is
    `torch.cuda.max_memory_allocated` of one step. Without a GPU time and memory are modelled, and a note says so.

    Args:
        ranks: of which rank 0 is used.
        shape: names from the program's `SLIDES`.
        deep: layers, instead of the number that the slides have.
        program: what has the names of `NEEDED`, `SLIDES` and `measured`; None for the lesson's own.
        rounds: timed steps of each way, on a GPU.
        talk: say which shape is at work.

    Returns:
        A report with the tables `summary` (shape, way, step_ms, peak_mib, and against the way that keeps everything
        saved_percent and slower_percent), `slides` (theirs, cited), and on a GPU `samples` (seconds).

    Raises:
        ValueError: there is no such shape, or none that was asked for fits into the GPU's memory.
        RankError: a rank fails.
    """
    check_rounds(rounds)
    code = choose("compiled_streams", program, (*NEEDED, "SLIDES", "measured"))
    shapes = code.code.SLIDES
    if unknown := [name for name in shape if name not in shapes]:
        raise ValueError(f"there is no shape {unknown[0]!r}: there is {', '.join(shapes)}")
    chosen = {n: replace(shapes[n], **({"layers": deep} if deep else {})) for n in shape or ("Small",)}
    tables, verdicts, notes = [], [], list(code.notes)
    taken = []
    for name, one in chosen.items():
        if talk:
            print(f"{name}: {one}", flush=True)
        if ranks.device == "cuda":
            try:
                times, peaks = ranks.run(code.code.measured, one, list(code.code.WAYS), rounds, timeout=900)[
                    0
                ]
            except RankError as error:
                if "OutOfMemoryError" not in str(error):
                    raise
                notes.append(f"{name}: does not fit into the GPU's memory")
                continue
            rows = samples(times).assign(shape=name, rank=0)
            taken.append(rows)
            tables.append(_measured(rows, peaks).assign(shape=name))
            verdicts += _verdicts(rows, name, ranks.label)
        else:
            tables.append(modelled(traced(one, program=program)).reset_index().assign(shape=name))
    if not tables:
        raise ValueError(f"{'; '.join(notes)}: take a smaller shape, or fewer layers (--deep)")
    if not taken:
        rates = ", ".join(f"{value:g} {rate}" for rate, value in vars(Rates()).items())
        notes.append(f"modelled on the graphs of the passes, at {rates}: nothing was run")
        notes.append(
            "measuring takes an NVIDIA GPU: `labkit run offload --device cuda`; Small takes about 11 GB"
        )
    summary = pd.concat(tables, ignore_index=True)[COLUMNS]
    found = {"summary": summary, "slides": reference.load("activation_offload")}
    if taken:
        found["samples"] = pd.concat(taken, ignore_index=True)
    settings = {"device": ranks.device, "program": code.digest, "rounds": rounds if taken else 0}
    made = provenance(**settings, layers={name: one.layers for name, one in chosen.items()})
    label = ranks.label if taken else MODELLED
    return Report("offload", ABOUT.title, label, found, verdicts, made, notes)


def _measured(rows: pd.DataFrame, peaks: dict[str, float]) -> pd.DataFrame:
    """The summary of one shape: medians of the rounds, and percentages against the first way."""
    times = rows.groupby("variant", sort=False)["seconds"].median() * 1e3
    found = pd.DataFrame({"step_ms": times, "peak_mib": pd.Series(peaks)}).loc[list(peaks)]
    first = found.iloc[0]
    found["saved_percent"] = 100 * (1 - found["peak_mib"] / first["peak_mib"])
    found["slower_percent"] = 100 * (found["step_ms"] / first["step_ms"] - 1)
    return found.rename_axis("way").reset_index()


def _verdicts(rows: pd.DataFrame, shape: str, label: str) -> list[Verdict]:
    first, *others = dict.fromkeys(rows["variant"])
    return compare_all(rows, [(way, first) for way in others], f"{shape}, {label}")
