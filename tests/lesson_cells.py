"""Cells of a lesson, run on the ranks of a test: what a lesson states is told by the code that the reader runs."""

from __future__ import annotations

import linecache
from typing import Any

import nbformat

from labkit import files, lessons


def run(lesson: str, *ids: str, **names: Any) -> dict[str, Any]:
    """Run the cells with these ids, in this order, with `names` defined; returns all names afterwards."""
    notebook = nbformat.read(files.ours("notebooks") / f"{lesson}.ipynb", as_version=4)
    sources = {cell.get("id"): cell.source for cell in notebook.cells if cell.cell_type == "code"}
    space = {"__name__": "__main__", **names}  # functions of __main__ travel to ranks by value
    for name in ids:
        exec(compile(sources[name], f"<{lesson} {name}>", "exec"), space)
    return space


def copied(lesson: str, *edits: tuple[str, str]) -> dict[str, Any]:
    """The program of a lesson as its notebook runs it: in `__main__`, each cell under a file name of its own.

    Each edit is a text that stands once in these cells, and what the reader wrote in its place.
    """
    sources = list(lessons.cells(lesson).values())
    for before, after in edits:
        assert sum(source.count(before) for source in sources) == 1, before
        sources = [source.replace(before, after) for source in sources]
    space = {"__name__": "__main__"}
    for source in sources:
        name = f"/scratch/ipykernel_1/{abs(hash(source))}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), space)
    return space
