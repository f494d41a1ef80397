"""Facts of a module's source for a review of compiled distributed code: functions, collectives, side effects.

Facts only, read off the syntax tree without importing anything; `review.py` makes judgements of them. A name is taken
for what it usually is: `funcol.all_reduce` is a functional collective wherever `funcol` came from. Copy this file
with review.py; they need only Python.
"""

from __future__ import annotations

import ast
import importlib.util
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

__all__ = ["Facts", "Function", "Occurrence", "read_facts"]

COLLECTIVES = frozenset(
    "all_reduce all_gather all_gather_into_tensor all_gather_object all_gather_tensor reduce_scatter barrier"
    " reduce_scatter_tensor broadcast broadcast_object_list all_to_all all_to_all_single reduce gather scatter"
    " send recv".split()
)
OWNERS = frozenset("dist distributed c10d funcol _functional_collectives functional_collectives".split())
FUNCTIONAL = frozenset("funcol _functional_collectives functional_collectives".split())
LOGS = frozenset("debug info warning error exception critical log".split())
VALUES = frozenset("item tolist any all sum max min mean nonzero".split())
MUTATORS = frozenset("copy_ add_ mul_ sub_ div_ fill_ zero_ load_state_dict".split())
WEIGHTS = frozenset("weight weights bias params parameters data state_dict".split())


@dataclass(frozen=True)
class Occurrence:
    """A place in the source: its line, the function around it, and its text."""

    line: int
    function: str
    text: str


@dataclass
class Function:
    """A function: its name and line, whether it is compiled, hidden from the compiler, gated, and whom it calls."""

    name: str
    line: int
    compiled: bool = False
    disabled: bool = False
    gated: bool = False
    calls: set[str] = field(default_factory=set)


@dataclass
class Facts:
    """A module as a reviewer needs it: lists in source order, and every name that is used.

    Functions of one name count as one. `under_rank` and `under_data` are collectives that a condition guards, also
    by returning before them.
    """

    file: str
    functions: dict[str, Function] = field(default_factory=dict)
    collectives: list[Occurrence] = field(default_factory=list)
    functional: list[Occurrence] = field(default_factory=list)
    under_rank: list[Occurrence] = field(default_factory=list)
    under_data: list[Occurrence] = field(default_factory=list)
    effects: list[Occurrence] = field(default_factory=list)
    works: list[Occurrence] = field(default_factory=list)
    mutations: list[Occurrence] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    timeouts: list[Occurrence] = field(default_factory=list)

    def compiled(self) -> set[str]:
        """The functions that are compiled, and those of this module that they call, outside of hidden ones."""
        reached: set[str] = set()
        todo = [name for name, function in self.functions.items() if function.compiled]
        while todo:
            name = todo.pop()
            if name in reached or name not in self.functions or self.functions[name].disabled:
                continue
            reached.add(name)
            todo += self.functions[name].calls
        return reached


def read_facts(module: str | Path | ModuleType) -> Facts:
    """Read the facts of a module off its source.

    Args:
        module: The path of a Python file, or an imported module.

    Raises:
        ValueError: For a module without a source file, a file that cannot be read, or one that is no Python.

    >>> read_facts("/nowhere/mine.py")
    Traceback (most recent call last):
    ValueError: cannot read /nowhere/mine.py: No such file or directory
    """
    path = getattr(module, "__file__", None) if isinstance(module, ModuleType) else module
    if path is None:
        raise ValueError(f"module {getattr(module, '__name__', module)!r} has no source file")
    source = _source(Path(path))
    reader = _Reader(Facts(str(path)), source)
    try:
        with warnings.catch_warnings(action="ignore"):  # about the code of others
            reader.visit(ast.parse(source, str(path)))
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: not Python: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"{path} is nested too deeply to be read") from error
    for name in reader.wrapped_compiled:
        if name in reader.facts.functions:
            reader.facts.functions[name].compiled = True
    for name in reader.wrapped_disabled:
        if name in reader.facts.functions:
            reader.facts.functions[name].disabled = True
    return reader.facts


def _source(path: Path) -> str:
    """A file's text in the encoding that it states, without a byte-order mark."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError(
                f"cannot read {path}: it is a {'folder' if path.is_dir() else 'device'}, not a file"
            )
        source = importlib.util.decode_source(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if "\0" in source:
        line = source[: source.index("\0")].count("\n") + 1
        raise ValueError(f"{path}, line {line}: not Python: it holds a NUL byte")
    return source


class _Reader(ast.NodeVisitor):
    def __init__(self, facts: Facts, source: str) -> None:
        self.facts, self.lines = facts, source.splitlines()
        self.inside: list[Function] = []
        self.tests: list[str] = []  # 'rank', 'data' or '' for each condition around the current place
        self.wrapped_compiled: set[str] = set()
        self.wrapped_disabled: set[str] = set()

    # -- functions and what wraps them --

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        function = Function(node.name, node.lineno)
        for decorator in node.decorator_list:
            words = set(_words(decorator))
            function.compiled |= "compile" in words
            function.disabled |= "disable" in words
        self.facts.functions[node.name] = function
        outside, self.tests = self.tests, []
        for decorator in node.decorator_list:
            self.visit(decorator)
        self.inside.append(function)
        self._block(node.body)
        self.inside.pop()
        self.tests = outside

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> None:
        words = list(_words(node.func))
        last, owners = (words[-1] if words else ""), set(words[:-1])
        if self.inside:
            self.inside[-1].calls.add(last)
            self.inside[-1].gated |= last == "is_compiling"
        if last in ("compile", "disable") and owners & {"torch", "compiler", "_dynamo", "dynamo"}:
            wrapped = self.wrapped_compiled if last == "compile" else self.wrapped_disabled
            wrapped.update(name for given in node.args[:1] for name in _words(given))
        if last in COLLECTIVES and owners & OWNERS:
            self._collective(node, owners)
        effect = last == "print" or (last in LOGS and any("log" in word.lower() for word in owners))
        if effect:
            self.facts.effects.append(self._seen(node))
        if last in MUTATORS and (last == "load_state_dict" or owners & WEIGHTS):
            self.facts.mutations.append(self._seen(node))
        if last in ("init_process_group", "new_group") or last == "init_device_mesh":
            if any(keyword.arg == "timeout" for keyword in node.keywords):
                self.facts.timeouts.append(self._seen(node))
        self.generic_visit(node)

    def _collective(self, node: ast.Call, owners: set[str]) -> None:
        seen = self._seen(node)
        self.facts.collectives.append(seen)
        if owners & FUNCTIONAL:
            self.facts.functional.append(seen)
        if any(k.arg == "async_op" and getattr(k.value, "value", True) for k in node.keywords):
            self.facts.works.append(seen)
        if "rank" in self.tests:
            self.facts.under_rank.append(seen)
        if "data" in self.tests:
            self.facts.under_data.append(seen)

    # -- conditions --

    def _conditional(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self.visit(node.test)
        self.tests.append(_kind(node.test))
        for part in (node.body, node.orelse):
            self._block(part if isinstance(part, list) else [part])
        self.tests.pop()

    visit_If = visit_While = visit_IfExp = _conditional

    def _loop(self, node: ast.For | ast.With) -> None:
        for child in ast.iter_child_nodes(node):
            if child not in node.body:
                self.visit(child)
        self._block(node.body)

    visit_For = visit_With = _loop

    def _block(self, body: Sequence[ast.AST]) -> None:
        """Statements in a row; what stands behind `if rank: return` depends on the rank as well."""
        before = len(self.tests)
        for child in body:
            self.visit(child)
            if isinstance(child, ast.If) and isinstance(
                child.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)
            ):
                self.tests.append(_kind(child.test))
        del self.tests[before:]

    # -- names and assignments --

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            # in a constructor a weight is made; anywhere else it is changed
            constructs = bool(self.inside) and self.inside[-1].name in ("__init__", "reset_parameters")
            made = isinstance(target, ast.Attribute) and target.attr in ("weight", "bias", "data")
            subscript = isinstance(target, ast.Subscript) and set(_words(target.value)) & WEIGHTS
            if (made and not constructs) or subscript:
                self.facts.mutations.append(self._seen(node))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.facts.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.facts.names.add(node.attr)
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg == "fullgraph" and getattr(node.value, "value", None) is True:
            self.facts.names.add("fullgraph=True")
        self.generic_visit(node)

    def _seen(self, node: ast.expr | ast.stmt) -> Occurrence:
        where = self.inside[-1].name if self.inside else "module"
        text = self.lines[node.lineno - 1].strip()
        if text.endswith("("):  # a call over several lines
            text = textwrap.shorten(ast.unparse(node), 90, placeholder=" ...")
        return Occurrence(node.lineno, where, text)


def _words(node: ast.AST) -> Iterator[str]:
    """The names of a dotted expression, outermost last: `torch.compile(...)` gives torch, compile."""
    if isinstance(node, ast.Call):
        yield from _words(node.func)
    elif isinstance(node, ast.Attribute):
        yield from _words(node.value)
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Subscript):
        yield from _words(node.value)


def _kind(test: ast.expr) -> str:
    """What a condition depends on: 'rank' (or what a host has set), 'data' (a tensor's values), or ''."""
    kind = ""
    for node in ast.walk(test):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if "rank" in name.lower() or name in ("environ", "getenv", "gethostname"):
            return "rank"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VALUES:
            kind = "data"
    return kind
