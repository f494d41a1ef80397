"""A lesson, executed from top to bottom once for all tests of a file: what its cells showed, as tables and as text.

A test file of a lesson names it as `LESSON`, imports `test_it_runs_from_top_to_bottom`, and takes the fixture `run`.
It may have `SIZES`: parameters as `labkit run` takes them, one execution each; without it the notebook's own.
"""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pandas as pd

from labkit import files
from labkit.lessons import execution
from labkit.lessons.parameters import chosen, parameters
from labkit.report import Report

STUB = "not yet: there is nothing to check yet: write the "  # body of the function, or methods of the class


@dataclass
class Run:
    """What came of one execution.

    Attributes:
        lesson: the name of the notebook without its ending.
        values: its parameters by name, those that were not given included.
        failed: '' or which cell failed, and why.
        reports: by name, the last of each.
        folder: where the executed notebook and its reports are.
    """

    lesson: str
    values: dict[str, object]
    failed: str
    reports: dict[str, Report]
    folder: Path

    def __post_init__(self) -> None:
        self.notebook = nbformat.read(self.folder / f"{self.lesson}.ipynb", as_version=4)

    def table(self, report: str, table: str = "") -> pd.DataFrame:
        """A table of a report; its first where none is named."""
        return self.reports[report].tables[table] if table else self.reports[report].frame

    def text(self, cell: str) -> str:
        """What the cell with this id printed and showed, as plain text."""
        (found,) = (one for one in self.notebook.cells if one.get("id") == cell)
        kept = [
            one for one in found.outputs if one.get("metadata", {}).get("labkit") != "live"
        ]  # not how far it is
        return "\n".join(
            one.get("text") or "".join(one.get("data", {}).get("text/plain", "")) for one in kept
        )


def take(lesson: str, size: str, folder: Path) -> Run:
    """Execute a lesson in a fresh kernel.

    Args:
        lesson: the name of the notebook without its ending.
        size: parameters, as in 'BLOCKS=2 ROUNDS=8'.
        folder: where it is executed to.
    """
    path = files.ours("notebooks") / f"{lesson}.ipynb"
    known = parameters(path)
    values = chosen(known, dict(word.split("=") for word in size.split()), lesson)
    done = execution.execute(path, values, folder)
    given = {name: one.default for name, one in known.items()} | values
    return Run(lesson, given, done.failed, {one.name: one for one in done.reports}, folder)


def test_it_runs_from_top_to_bottom(run: Run) -> None:
    """No cell fails, each report is kept, and a check says of a function that is not written yet what it is."""
    assert not run.failed, run.failed
    assert all((run.folder / f"{name}.json").exists() for name in run.reports)
    listed = tomllib.loads(files.ours("data/experiments.toml").read_text())["experiment"]
    named = {one["report"] for one in listed if one["lesson"] == run.lesson and "report" in one}
    assert named <= set(run.reports), "data/experiments.toml names a report that is not kept"
    cells = run.notebook.cells
    assert all(c.execution_count for c in cells if c.cell_type == "code" and c.source.strip())
    for stub, asked in itertools.pairwise(cells):
        if "exercise" in stub.metadata.get("tags", ()):
            assert STUB in "".join(o.get("data", {}).get("text/plain", "") for o in asked.outputs), (
                asked.source
            )
