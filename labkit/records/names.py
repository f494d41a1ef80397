"""Readable names of functions: `Block.forward` for a method, `forward, resumed at In [5]:7` after a graph break."""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass

from labkit import places

__all__ = ["Names"]

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")


@dataclass(frozen=True)
class _Def:
    name: str
    qualified: str
    first: int
    last: int


class Names:
    """Finds functions in their source, to name them with their class. One object reads each file once.

    >>> Names().qualified(__file__, "function", Names.function.__code__.co_firstlineno)
    'Names.function'
    """

    def __init__(self) -> None:
        self._files: dict[str, list[_Def]] = {}

    def qualified(self, filename: str, name: str, line: int) -> str:
        """Return `name` with the classes around it, where the source is at hand; enclosing functions are left out."""
        around = [d for d in self._definitions(filename) if d.name == name and d.first <= line <= d.last]
        return max(around, key=lambda d: d.first).qualified if around else name

    def function(self, name: str, filename: str, line: int) -> tuple[str, str]:
        """Return the readable name and the place of a code object."""
        if match := _RESUMED.match(name):
            at = int(match["line"])
            original = self.qualified(filename, match["name"], at)
            return f"{original}, resumed at {places.place(filename, at)}", places.place(
                filename, at, original
            )
        qualified = self.qualified(filename, name, line)
        return qualified, places.place(filename, line, qualified)

    def place(self, filename: str, line: int, name: str) -> str:
        """Return the text of a place inside a function."""
        if match := _RESUMED.match(name):
            name = match["name"]
        return places.place(
            filename, line, "" if name == "<module>" else self.qualified(filename, name, line)
        )

    def extent(self, filename: str, name: str, line: int) -> tuple[int, int]:
        """Return the first and last line of the function `name` around a line; for a resumed one, of the original."""
        if match := _RESUMED.match(name):
            name = match["name"]
        around = [d for d in self._definitions(filename) if d.name == name and d.first <= line <= d.last]
        found = max(around, key=lambda d: d.first, default=None)
        return (found.first, found.last) if found else (line, line)

    def _definitions(self, filename: str) -> list[_Def]:
        if filename not in self._files:
            self._files[filename] = _definitions("".join(linecache.getlines(filename)))
        return self._files[filename]


def _definitions(source: str) -> list[_Def]:
    """Every function of a source text; nothing when it is not Python (a cell with magics, a template)."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found: list[_Def] = []

    def walk(node: ast.AST, classes: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                qualified = ".".join((*classes, child.name))
                found.append(_Def(child.name, qualified, first, child.end_lineno or first))
                walk(child, ())
            elif isinstance(child, ast.ClassDef):
                walk(child, (*classes, child.name))
            else:
                walk(child, classes)

    walk(tree, ())
    return found
