"""Reports that are kept in data/recorded, by experiment and machine."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from labkit import experiments, files, hardware
from labkit.report import Report

__all__ = ["newest", "of_experiments"]


def newest(name: str, machine: str | None = None, folder: Path | None = None) -> Path | None:
    """Find the newest recording of an experiment.

    Args:
        name: of the report.
        machine: such as '2-core-cpu'; None for any.
        folder: by default data/recorded of this checkout.

    Returns:
        The path, or None where there is none.

    >>> newest("cliff").name, newest("cliff", machine="abacus")
    ('cliff.json', None)
    """
    root = files.ours("data/recorded") if folder is None else folder
    found = []
    for path in root.glob(f"*/{name}.json"):
        parts = re.fullmatch(r"(.+)-(\d{4}-\d{2}-\d{2})", path.parent.name)
        if parts and machine in (None, parts[1]):
            found.append((parts[2], path.parent.name, path))
    return max(found)[2] if found else None


def of_experiments(folder: Path | None = None) -> pd.DataFrame:
    """A row an experiment: its question, the date of this machine's newest recording, and the first verdict of it.

    Where this machine has none, `recorded` is empty and `how` is the command that makes one. Raises ValueError for a
    recording that cannot be read.

    >>> list(of_experiments().columns)
    ['experiment', 'question', 'recorded', 'torch', 'found', 'how']
    """
    rows = []
    for name in experiments.declared():
        mine = newest(name, hardware.slug(), folder)
        report = Report.load(mine) if mine else None
        made = report.provenance if report else {}
        rows.append(
            {
                "experiment": name,
                "question": experiments.get(name).question,
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
