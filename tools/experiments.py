"""The page of the sources' experiments: where each stands in the lessons, how to run it, and what came of it here.

`python -m tools.course` writes it, from data/experiments.toml, the facts and the recorded runs of the ledger.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from labkit import files
from labkit.lessons.parameters import chosen, parameters
from labkit.torch_compat.versions import TESTED
from ledger import versions
from ledger.facts import Fact, load
from tools import recorded
from tools.fit import ROOT

__all__ = ["PAGE", "page"]

PAGE = "docs/experiments.md"
INTRO = """# The experiments of the sources

Each experiment that a source document lists, the lesson and the cell that do it (with the number that the saved
lesson shows), the command that runs the lesson without a browser, what it needs, and what came of it. The last column
names the facts of the ledger that the experiment shows, each with the word that follows from the recorded versions of
torch. Their sentences and what was measured on torch {version}, {hardware}, stand below. `make map` writes this page.
"""


def page(rows: list[dict[str, Any]] | None = None, root: Path = ROOT) -> str:
    """Make the page.

    Args:
        rows: the entries of data/experiments.toml, by default.
        root: the checkout whose lessons are looked at.

    Returns:
        Markdown.

    Raises:
        ValueError: an entry names a fact, a cell, a lesson or a parameter that there is none of.
    """
    rows = rows or tomllib.loads(files.ours("data/experiments.toml").read_text())["experiment"]
    version, facts = TESTED[-1], load()
    measured = versions.answers(facts)[version]
    words = versions.matrix(facts)["word"]
    table, told, done = [], [], set()
    for row in rows:
        shown = facts.choose(only=row["facts"])
        place = (
            f"[{files.number(row['lesson'])}](../notebooks/{row['lesson']}.ipynb), In [{_cell(row, root)}]"
        )
        outcome = ", ".join(f"{fact.id}: *{words[fact.id]}*" for fact in shown)
        asks = f"**{row['source']}.** {row['asks']}"
        table.append(f"| {' | '.join([asks, place, _command(row), _needs(row, shown), outcome])} |")
        for fact in shown:
            if fact.id not in done:
                done.add(fact.id)
                said = measured[fact.id].said().replace("`", "'") if fact.id in measured else ""
                told.append(
                    f"* **{fact.id}**, *{words[fact.id]}*: {fact.says}" + f" Measured: `{said}`" * bool(said)
                )
    recorded_on = versions.load(versions.records()[version]).provenance
    hardware = recorded_on.get("hardware", "")
    intro = INTRO.format(version=version, hardware=hardware)
    head = ["| experiment | where | command | needs | came of it |", "|---|---|---|---|---|"]
    parts = [intro, *head, *table, "\n## What was measured", *told]
    return "\n".join(parts) + "\n"


def _cell(row: dict[str, Any], root: Path) -> int:
    """The number that the saved lesson shows beside the cell of an experiment."""
    notebook = json.loads((root / "notebooks" / f"{row['lesson']}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    found = [cell["execution_count"] for cell in cells if row["cell"] in "".join(cell["source"])]
    if len(found) != 1:
        raise ValueError(f"{row['source']}: {len(found)} code cells of {row['lesson']} have {row['cell']!r}")
    return found[0]


def _command(row: dict[str, Any]) -> str:
    """The command, and the newest recorded report of its cells where there is one.

    Raises:
        ValueError: `labkit run` would refuse it.
    """
    lesson, *given = row["run"].split()
    if not row["lesson"].startswith(lesson):
        raise ValueError(
            f"{row['source']}: the cell is in {row['lesson']}, and the command runs lesson {lesson}"
        )
    known = parameters(files.ours("notebooks") / f"{row['lesson']}.ipynb")
    chosen(known, dict(word.split("=", 1) for word in given), row["source"])
    report = recorded.newest(row["report"]) if "report" in row else None
    kept = f" ([recorded](../{report.relative_to(ROOT)}))" if report else ""
    return f"`labkit run {row['run']}`{kept}"


def _needs(row: dict[str, Any], facts: tuple[Fact, ...]) -> str:
    ranks = row.get("ranks", 2)
    gpu = sorted({need for fact in facts for need in fact.needs})
    return f"{ranks} rank{'s' * (ranks > 1)}, any machine" + f"; its facts take {', '.join(gpu)}" * bool(gpu)
