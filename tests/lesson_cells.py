"""Cells of a lesson, run on the ranks of a test: what a lesson states is told by the code that the reader runs."""

from __future__ import annotations

import ast
import linecache
from typing import Any

import nbformat

from labkit import files, lessons


def run(lesson: str, *ids: str, **names: Any) -> dict[str, Any]:
    """Run the cells with these ids, in this order, with `names` defined; returns all names afterwards."""
    sources = _sources(lesson)
    space = {"__name__": "__main__", **names}  # functions of __main__ travel to ranks by value
    for name in ids:
        exec(compile(sources[name], f"<{lesson} {name}>", "exec"), space)
    return space


def definitions(lesson: str, *ids: str) -> dict[str, Any]:
    """Run the program of a lesson, and of the cells with these ids what stands before the first use of ranks."""
    sources, space = _sources(lesson), copied(lesson)
    for name in ids:
        tree = ast.parse(sources[name])
        uses = [any(_is_ranks(node) for node in ast.walk(statement)) for statement in tree.body]
        tree.body = tree.body[: [*uses, True].index(True)]
        exec(compile(tree, f"<{lesson} {name}>", "exec"), space)
    return space


def _is_ranks(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("ranks", "labkit")


def _sources(lesson: str) -> dict[str, str]:
    notebook = nbformat.read(files.ours("notebooks") / f"{lesson}.ipynb", as_version=4)
    return {cell.get("id"): cell.source for cell in notebook.cells if cell.cell_type == "code"}


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
