"""How large the project is, in lines of code: without blank lines, comments and docstrings.

python tools/size.py            the figures
python tools/size.py --files    every file of labkit, largest first
python tools/size.py --check    exit code 1 where a figure is above its limit
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# they go down, but for a lesson or an instrument that is added
LIMITS = {"core of labkit": 15_760, "all Python outside tests": 40_700, "imports inside functions": 75}
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
def code_lines(text: str) -> int:
    """Number of lines that hold code. Raises SyntaxError for what is no Python.

    >>> code_lines('"A docstring."\\n\\n# a comment\\nx = 1\\n')
    1
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _SCOPES) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


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
    """The figures by name: lines of code, and imports inside functions of labkit."""
    labkit = {path: path.read_text() for path in python_files("labkit")}
    lessons = ROOT / "labkit" / "lessons"
    topics = sum(code_lines(text) for path, text in labkit.items() if lessons in path.parents)
    whole = sum(map(code_lines, labkit.values()))
    others = sum(code_lines(p.read_text()) for p in python_files("tools", "benchmarks", "docs"))
    return {
        "core of labkit": whole - topics,
        "labkit/lessons": topics,
        "all Python outside tests": whole
        + others
        + sum(code_lines(p.read_text()) for p in ROOT.glob("*.py")),
        "tests": sum(code_lines(p.read_text()) for p in python_files("tests")),
        "imports inside functions": sum(map(imports_inside, labkit.values())),
        "files of labkit": len(labkit),
    }


def main() -> int:
    """Print the figures beside their limits."""
    parser = argparse.ArgumentParser(
        description="Lines of code, without blank lines, comments and docstrings."
    )
    parser.add_argument("--files", action="store_true", help="every file of labkit, largest first")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a figure is above its limit")
    asked = parser.parse_args()
    if asked.files:
        rows = sorted(((code_lines(p.read_text()), p) for p in python_files("labkit")), reverse=True)
        for lines, path in rows:
            print(f"{lines:6,}  {path.relative_to(ROOT)}")
    over = False
    for name, value in figures().items():
        limit = LIMITS.get(name)
        over |= limit is not None and value > limit
        print(f"{name:28}{value:8,}" + (f"   at most {limit:,}" if limit else ""))
    return int(asked.check and over)


if __name__ == "__main__":
    sys.exit(main())
