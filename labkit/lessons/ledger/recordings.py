"""The experiments and what this machine has recorded of each."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from labkit import experiments, hardware
from labkit.report import Report
from labkit.study import recorded

__all__ = ["recorded_experiments"]


def recorded_experiments(folder: Path | None = None) -> pd.DataFrame:
    """List every experiment with the newest recording of this machine.

    Args:
        folder: by default data/recorded of this checkout.

    Returns:
        A table with the question of each experiment, the date of its newest recording, and the first verdict of it.
        Where this machine has none, `recorded` is empty and `how` is the command that makes one.

    Raises:
        ValueError: a recording cannot be read.

    >>> list(recorded_experiments().columns)
    ['experiment', 'question', 'recorded', 'torch', 'found', 'how']
    """
    rows = []
    for name, experiment in experiments.declared().items():
        mine = recorded.newest(name, hardware.slug(), folder)
        report = Report.load(mine) if mine else None
        made = report.provenance if report else {}
        rows.append(
            {
                "experiment": name,
                "question": experiment.question,
                "recorded": str(made.get("date", ""))[:10],
                "torch": str(made.get("torch", "")),
                "found": _first(report) if report else "",
                "how": "" if report else f"labkit record {name}",
            }
        )
    return pd.DataFrame(rows)


def _first(report: Report) -> str:
    """The first verdict of a report, else its first note, else how many rows its first table has."""
    said = [*map(str, report.verdicts), *report.notes, f"{len(report.frame)} rows, no verdict"]
    return said[0]
