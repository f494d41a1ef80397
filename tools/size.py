"""How large the project is, in lines of code: without blank lines, comments and docstrings. It holds nothing."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def lines_of_code(text: str) -> frozenset[int]:
    """Numbers of the lines that hold code. Raises SyntaxError for what is no Python.

    >>> sorted(lines_of_code('"A docstring."\\n\\n# a comment\\nx = 1\\n'))
    [4]
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _SCOPES) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return frozenset(lines)


def code_lines(text: str) -> int:
    """Number of lines that hold code."""
    return len(lines_of_code(text))


def imports_inside(text: str) -> int:
    """Number of import statements inside functions; `if TYPE_CHECKING` at the top is none.

    >>> imports_inside("import os\\ndef f():\\n    import sys\\n")
    1
    """
    functions = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = {(n.lineno, n.col_offset) for f in functions for n in ast.walk(f) if _is_import(n)}
    return len(found)


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def python_files(*folders: str) -> Iterator[Path]:
    """Every Python file below folders of the repository."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def figures() -> dict[str, int]:
    """The figures by name: lines of code, imports inside functions and files of our packages."""
    packages = [name for name in ("labkit", "course", "ledger") if (ROOT / name).exists()]
    ours = {name: [path.read_text() for path in python_files(name)] for name in packages}
    others = {"tools, benchmarks, docs": ("tools", "benchmarks", "docs"), "tests": ("tests",)}
    found = {f"lines of {name}": sum(map(code_lines, texts)) for name, texts in ours.items()}
    for name, folders in others.items():
        found[f"lines of {name}"] = sum(code_lines(path.read_text()) for path in python_files(*folders))
    whole = [text for texts in ours.values() for text in texts]
    return found | {
        "imports inside functions": sum(map(imports_inside, whole)),
        "files of our packages": len(whole),
    }
