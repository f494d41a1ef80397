"""Cells of a lesson, run on the ranks of a test: what a lesson states is told by the code that the reader runs."""

from __future__ import annotations

from typing import Any

import nbformat

from labkit import files


def run(lesson: str, *ids: str, **names: Any) -> dict[str, Any]:
    """Run the cells with these ids, in this order, with `names` defined; returns all names afterwards."""
    notebook = nbformat.read(files.ours("notebooks") / f"{lesson}.ipynb", as_version=4)
    sources = {cell.get("id"): cell.source for cell in notebook.cells if cell.cell_type == "code"}
    space = {"__name__": "__main__", **names}  # functions of __main__ travel to ranks by value
    for name in ids:
        exec(compile(sources[name], f"<{lesson} {name}>", "exec"), space)
    return space
