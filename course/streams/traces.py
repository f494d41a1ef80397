"""The profiler traces of two streams on an H100 that lesson 06 reads: by name, and for its exercise by letter."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from course.shared.streams import Timeline
from labkit import files

__all__ = ["UNNAMED", "bars", "medians", "trace_file"]

FOLDER = "data/recorded/1x-nvidia-h100-80gb-hbm3-2026-11-26/traces"
UNNAMED = {"A": "small", "B": "pageable_copy", "C": "pinned_copy"}


def trace_file(name: str) -> Path:
    """The file of a trace: by the name of its case, or by the letter that it has in the exercise."""
    return files.ours(FOLDER) / f"{UNNAMED.get(name, name)}.json.gz"


def medians(*names: str) -> pd.DataFrame:
    """What the cases took on one stream and on two: ms between two CUDA events, medians of 30 rounds."""
    cases = json.loads((files.ours(FOLDER) / "cases.json").read_text(encoding="utf-8"))["cases"]
    rows = {name: cases[UNNAMED.get(name, name)] for name in names}
    forms = ("one stream", "two streams")
    return pd.DataFrame({name: [row[form] for form in forms] for name, row in rows.items()}, forms).T


def bars(name: str, label: str, spans: pd.DataFrame) -> Timeline:
    """What ran when, in ms, for the figure: rank, lane, name, kind, start and end of each piece of work."""
    return Timeline(name, label, "ms", spans)
