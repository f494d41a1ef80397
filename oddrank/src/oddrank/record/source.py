"""The text of a program's files, and their functions: from disk, a notebook's cells, or what the kernel keeps."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import linecache
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Function", "Sources"]

MOST_SOURCE = 4 << 20  # bytes of a file that is parsed; a trace may name any file
MOST_SOURCES = 64 << 20  # of all files
MOST_NOTEBOOK = 256 << 20
_AT_ONCE = getattr(
    os, "O_NONBLOCK", 0
)  # opening a pipe waits for whoever writes to it; Windows has no such files


@dataclass(frozen=True, slots=True)
class Function:
    """A function in a file.

    Args:
        first: Its first line, decorators included.
        last: Its last line.
        name: With the classes around it.
        calls: The calls in it as (line, name called).
        line: Of its `def`.
        body: Its statements in turn as (first line, last line, whether it may return from its middle), without the
            docstring, up to one that always leaves.
        tails: The lines of `return f(...)`.
        branches: Lines that a call may leave out: of an `if`, a `case` or an `except`, outer ones first.
        inner: Lines of the functions and classes inside it, below their `def`.
    """

    first: int
    last: int
    name: str
    calls: tuple[tuple[int, str], ...] = ()
    line: int = 0
    body: tuple[tuple[int, int, bool], ...] = ()
    tails: tuple[int, ...] = ()
    branches: tuple[tuple[int, int], ...] = ()
    inner: tuple[tuple[int, int], ...] = ()


@dataclass
class Sources:
    """Reads each file once, and no more than `MOST_SOURCES` of all.

    >>> Sources().inside(__file__, Sources.inside.__code__.co_firstlineno).name
    'Sources.inside'
    """

    _texts: dict[str, str] = field(default_factory=dict)
    _split: dict[str, list[str]] = field(default_factory=dict)
    _functions: dict[str, list[Function]] = field(default_factory=dict)
    _lines: dict[str, list[Function | None]] = field(
        default_factory=dict
    )  # the innermost function of each line
    _cells: dict[str, str] = field(default_factory=dict)
    _qualified: dict[tuple[str, int, str], str] = field(default_factory=dict)
    _read: int = 0

    def add_notebook(self, path: str | os.PathLike[str]) -> None:
        """Know a notebook's cells: ipykernel names the file of a cell by a hash of its text.

        Args:
            path: The notebook.

        Raises:
            OSError: It cannot be read.
            ValueError: It is no notebook.
        """
        try:
            cells = json.loads(_bytes(path, MOST_NOTEBOOK))["cells"]
            texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no notebook: {error}") from None
        self._cells |= {str(_murmur2(text.encode())): text for text in texts}

    def text(self, file: str) -> str:
        """The text of a file; '' where it is not here."""
        if file not in self._texts:
            linecache.checkcache(file)  # an edited file is read anew
            kept = "".join(linecache.getlines(file)) if file in linecache.cache else ""
            kept = kept or self._cells.get(Path(file).stem, "") or self._of_disk(file)
            self._texts[file] = kept
        return self._texts[file]

    def _of_disk(self, file: str) -> str:
        with contextlib.suppress(
            OSError, ValueError, SyntaxError
        ):  # a name from outside may be no name of a file
            if self._read < MOST_SOURCES and 0 < os.stat(file).st_size <= MOST_SOURCE:
                content = _bytes(file, MOST_SOURCE)
                self._read += len(content)
                return importlib.util.decode_source(content)
        return ""

    def lines(self, file: str) -> list[str]:
        """The lines of a file as Python counts them: a form feed ends none."""
        if file not in self._split:
            self._split[file] = self.text(file).split("\n")
        return self._split[file]

    def line(self, file: str, number: int) -> str:
        """A line of a file, without its indentation; '' where it is not here."""
        lines = self.lines(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def functions(self, file: str) -> list[Function]:
        """The functions of a file, outer ones first; none where it is not Python."""
        if file not in self._functions:
            self._functions[file] = _functions(self.text(file))
        return self._functions[file]

    def inside(self, file: str, line: int) -> Function | None:
        """The innermost function around a line; None for none."""
        if file not in self._lines:
            functions = self.functions(file)
            table: list[Function | None] = [None] * (1 + max((one.last for one in functions), default=0))
            for one in functions:
                table[one.first : one.last + 1] = [one] * (one.last + 1 - one.first)
            self._lines[file] = table
        lines = self._lines[file]
        return lines[line] if 0 <= line < len(lines) else None

    def qualified(self, file: str, line: int, name: str) -> str:
        """A function's name with its class, where its source is here: 'Block.forward'."""
        key = file, line, name
        if key not in self._qualified:
            self._qualified[key] = self._qualify(*key)
        return self._qualified[key]

    def _qualify(self, file: str, line: int, name: str) -> str:
        inner = self.inside(file, line)
        if inner is None or inner.name.rpartition(".")[2] == name:
            return inner.name if inner else name
        named = [one for one in self.functions(file) if one.name.rpartition(".")[2] == name]
        around = [one for one in named if one.first <= line <= one.last]
        return max(around, key=lambda one: one.first).name if around else name


def _bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """What a regular file holds; a pipe or a device, which may never end, is not opened for long.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no regular file, or has more bytes.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has over {most >> 20} MB")
    return content


def _functions(text: str) -> list[Function]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[Function] = []

    def walk(node: ast.AST, around: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                walk(child, around)
                continue
            if not isinstance(child, ast.ClassDef):
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                name = ".".join((*around, child.name))
                last = child.end_lineno or first
                statements = _body(child), _tails(child), *_branches(child)
                found.append(Function(first, last, name, _calls(child), child.lineno, *statements))
            walk(child, (*around, child.name) if isinstance(child, ast.ClassDef) else ())

    try:
        walk(tree, ())
    except RecursionError:
        return []
    return found


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what it holds, outer ones first; of a function or class inside only the node itself."""
    waiting = deque([node])
    while waiting:
        yield (one := waiting.popleft())
        if one is node or not isinstance(one, _SCOPES):
            waiting.extend(ast.iter_child_nodes(one))


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[tuple[int, int, bool], ...]:
    found = []
    for one in function.body[ast.get_docstring(function, clean=False) is not None :]:
        leaves = isinstance(one, (ast.Return, ast.Raise))
        nodes = () if leaves or isinstance(one, _SCOPES) else _own(one)
        inside = any(isinstance(node, (ast.Return, ast.Raise)) for node in nodes)
        found.append((one.lineno, one.end_lineno or one.lineno, inside))
        if leaves:
            break
    return tuple(found)


def _tails(function: ast.AST) -> tuple[int, ...]:
    returns = [node for node in _own(function) if isinstance(node, ast.Return)]
    return tuple(sorted(node.lineno for node in returns if isinstance(node.value, ast.Call)))


def _branches(function: ast.AST) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    branches: list[tuple[int, int]] = []
    inner: list[tuple[int, int]] = []
    for node in _own(function):
        if node is not function and isinstance(node, _SCOPES):
            inner.append((node.lineno + 1, node.end_lineno or node.lineno))
        blocks: list[list[ast.stmt]] = []
        if isinstance(node, ast.If):
            blocks = [node.body, node.orelse]
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            blocks = [node.body]
        spans = [(block[0].lineno, block[-1].end_lineno or block[-1].lineno) for block in blocks if block]
        branches += [span for span in spans if span[0] > getattr(node, "lineno", 0)]
    return tuple(branches), tuple(inner)


def _calls(function: ast.AST) -> tuple[tuple[int, str], ...]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    named = [
        (c.lineno, c.func.attr if isinstance(c.func, ast.Attribute) else getattr(c.func, "id", ""))
        for c in calls
    ]
    return tuple(sorted(named))


def _murmur2(data: bytes, seed: int = 0xC70F6907) -> int:
    """The hash by which ipykernel names a cell's file (`ipykernel.compiler.murmur2_x86`)."""
    m, full, h = 0x5BD1E995, 0xFFFFFFFF, seed ^ len(data)
    for i in range(0, len(data) & ~3, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & full
        h = (h * m & full) ^ ((k ^ k >> 24) * m & full)
    if rest := data[len(data) & ~3 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & full
    h = (h ^ h >> 13) * m & full
    return h ^ h >> 15
