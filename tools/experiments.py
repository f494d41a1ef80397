"""The page of the sources' experiments: where each stands in the lessons, how to run it, and what came of it here.

`python -m tools.course` writes it, from data/experiments.toml, the claims and the recorded run of the ledger.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from labkit import experiments, files
from labkit.study import claims, ledger, recorded, results, versions
from labkit.torch_compat.versions import TESTED
from tools.fit import ROOT

__all__ = ["PAGE", "page"]

PAGE = "docs/experiments.md"
INTRO = """# The experiments of the sources

Each experiment that a source document lists, the lesson and the cell that do it (with the number that the saved lesson
shows), the command that does it without a notebook, what it needs, and what came of it. The last column counts the
claims of the experiment by the word that the ledger gave them on torch {version}, {hardware}. The measurements stand
below; what each word means, lesson [19](../notebooks/19_ledger.ipynb) says. `make map` writes this page.
"""


def page(rows: list[dict[str, Any]] | None = None, root: Path = ROOT) -> str:
    """Make the page.

    Args:
        rows: the entries of data/experiments.toml, by default.
        root: the checkout whose lessons are looked at.

    Returns:
        Markdown.

    Raises:
        ValueError: an entry names a claim, an experiment or a cell that there is none of.
    """
    rows = rows or tomllib.loads(files.ours("data/experiments.toml").read_text())["experiment"]
    version, every = TESTED[-1], claims.load()
    recording = versions.record(version)
    run = results.current(every, recording).frame.set_index("id")
    words = versions.matrix(every)
    table, told = [], []
    for row in rows:
        chosen = every.choose(only=row["claims"])
        found = run.reindex([one.id for one in chosen]).fillna("")
        found["status"] = words.loc[found.index, version]
        place = f"[{row['lesson'][:2]}](../notebooks/{row['lesson']}.ipynb), In [{_cell(row, root)}]"
        outcome = ", ".join(f"{n} {word}" for word, n in Counter(found["status"]).items())
        asks = f"**{row['source']}.** {row['asks']}"
        table.append(f"| {' | '.join([asks, place, _command(row), _needs(row, chosen), outcome])} |")
        told.append(f"\n**{row['source']}**\n")
        for claim in chosen:
            word, said = found.loc[claim.id, "status"], found.loc[claim.id, "measured"].replace("`", "'")
            if word != ledger.CITED:  # nothing was measured
                told.append(f"* {claim.claim} *{word}*" + f": `{said}`" * bool(said))
    intro = INTRO.format(version=version, hardware=recording.provenance.get("hardware", ""))
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
    """The command, and the newest recorded report of it where there is one."""
    if "run" not in row:
        return f"`labkit ledger --only '{row['claims'][0]}'`"
    report = recorded.newest(experiments.get(row["run"].split()[0]).name.partition("/")[0])
    kept = f" ([recorded](../{report.relative_to(ROOT)}))" if report else ""
    return f"`{row.get('settings', '')} labkit run {row['run']}`".replace("` ", "`") + kept


def _needs(row: dict[str, Any], chosen: tuple[claims.Claim, ...]) -> str:
    ranks = row.get("ranks") or experiments.get(row["run"].split()[0]).ranks
    gpu = sorted({need for claim in chosen for need in claim.needs})
    return f"{ranks} rank{'s' * (ranks > 1)}, any machine" + f"; its claims take {', '.join(gpu)}" * bool(gpu)
