"""The program of a lesson: the cells of its notebook that are tagged `program`, read as data and run as a module."""

from __future__ import annotations

import ast
import importlib
import json
import linecache
from collections.abc import Iterator, Mapping
from typing import Any

from labkit import files, registry
from oddrank import places

__all__ = ["cells", "execute", "load", "names_of", "program"]

TAG = "program"


def program(topic: str) -> Any:
    """Import the program of a lesson: a module made of the cells of its notebook that are tagged `program`.

    The notebook is the one place where this code stands. Tracebacks and break tables name its cells, such as
    `04_graph_break_cliff [3]:12 (RMSNorm.forward)`: the third code cell, its line 12.

    It is imported once in a process, and its functions and classes travel to ranks by name.

    Raises:
        ValueError: there is no such topic, its lesson has no program, or a cell of the program cannot be run.

    >>> cliff = program("cliff")
    >>> cliff.Model(cliff.Config(blocks=2))(cliff.Config().sample()).shape
    torch.Size([1, 4, 64])
    """
    name = registry.lesson(topic)
    try:
        return importlib.import_module(f"course.{topic}.program")
    except ValueError as error:
        if f"lesson {name} has no program" not in str(error):
            raise
        raise ValueError(f"topic {topic!r} has no program made of the cells of its lesson") from None


def cells(lesson: str, tag: str = TAG) -> dict[str, str]:
    """The sources of the cells of a lesson that have a tag, by their label.

    The number in the label counts the code cells from the top, as `In [3]` does after a run from top to bottom.

    Raises:
        ValueError: the notebook is not there, is no notebook, or has no cell with this tag.

    >>> list(cells("04_graph_break_cliff"))[0]
    '04_graph_break_cliff [3]'
    """
    path = files.ours("notebooks") / f"{lesson}.ipynb"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in found if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        missing = isinstance(error, FileNotFoundError)
        why = "is missing" if missing else f"is no notebook: {type(error).__name__}: {error}"
        raise ValueError(f"the program of lesson {lesson} cannot be read: {path.name} {why}") from None
    tagged = {
        f"{lesson} [{number}]": "".join(cell["source"])
        for number, cell in enumerate(code, 1)
        if tag in cell.get("metadata", {}).get("tags", ())
    }
    if not tagged:
        raise ValueError(f"lesson {lesson} has no program: no code cell is tagged `{tag}`")
    return tagged


def load(lesson: str, namespace: dict[str, Any]) -> None:
    """Run the tagged cells of a lesson in a namespace, which is a module's `globals()`.

    Raises:
        ValueError: as `cells` and `execute` do.
    """
    execute(cells(lesson), namespace)


def execute(sources: Mapping[str, str], namespace: dict[str, Any]) -> None:
    """Run cells in a namespace, which is a module's `globals()`.

    Each cell is compiled under its label as file name, and its lines are put where tracebacks and Dynamo look for them.
    The names that the cells define, without what they import, are left in `__program__`.

    Raises:
        ValueError: a cell does not parse, or fails when it is run. The message names the cell.
    """
    defined: list[str] = []
    for label, source in sources.items():
        linecache.cache[label] = (len(source), None, source.splitlines(keepends=True), label)
        places.register(label, label)
        try:
            tree = ast.parse(source, label)
            code = compile(tree, label, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ValueError(f"{label}:{error.lineno} of the program is not Python: {error.msg}") from None
        try:
            exec(code, namespace)
        except Exception as error:
            raise ValueError(f"{label} of the program failed: {type(error).__name__}: {error}") from error
        defined += names_of(tree)
    namespace["__program__"] = tuple(dict.fromkeys(defined))


def names_of(tree: ast.Module) -> Iterator[str]:
    """Names that the top level of a cell defines or assigns; imports are left out."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
