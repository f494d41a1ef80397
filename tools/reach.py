"""Which code is reached from which door, read off the sources: definitions at the top of a module, and what names them.

A name is followed through imports, through the attributes of modules, and through texts such as 'labkit.cli:main'.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.size import lines_of_code

__all__ = ["PACKAGES", "ROOT", "Code", "Name", "cells", "dotted_names"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(name for name in ("labkit", "course", "ledger") if (ROOT / name / "__init__.py").exists())
Name = tuple[str, str]  # module and name in it; the name is '' for the module itself
TEXT = re.compile(rf"((?:{'|'.join(PACKAGES)})[\w.]*):(\w+)")


def ours(dotted: str | None) -> bool:
    return (dotted or "").partition(".")[0] in PACKAGES


@dataclass
class Module:
    """A parsed file: what it defines at its top, what it imports by which name, and what runs on import."""

    tree: ast.Module
    lines: set[int]
    defines: dict[str, ast.stmt] = field(default_factory=dict)
    binds: dict[str, Name] = field(default_factory=dict)
    runs: list[ast.stmt] = field(default_factory=list)

    @property
    def own_lines(self) -> set[int]:
        """The lines of code that belong to no definition: imports, docstring, what runs on import."""
        return self.lines.difference(*(span(node) for node in self.defines.values()))


def span(node: ast.stmt) -> range:
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or node.lineno) + 1)


def parse(text: str, package: str = "") -> Module:
    """Read a file; relative imports start from its package."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            node.module, node.level = ".".join([*above, *filter(None, [node.module])]), 0
    module = Module(tree, lines_of_code(text))
    bind(module, tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            module.defines[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            module.defines |= {name: node for name in names if name != "__all__"}
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            module.runs.append(node)
    return module


def bind(module: Module, tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and ours(node.module):
            module.binds |= {a.asname or a.name: (str(node.module), a.name) for a in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if ours(alias.name):
                    root = alias.name.partition(".")[0]
                    module.binds[alias.asname or root] = (alias.name if alias.asname else root, "")


class Code:
    """The modules of our packages.

    Args:
        root: the folder that holds the packages.

    >>> code = Code()
    >>> ("labkit.timing.times", "interleave") in code.reached([("labkit.timing", "interleave")])
    True
    """

    def __init__(self, root: Path = ROOT) -> None:
        paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
        self.modules = {}
        for path in paths:
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            self.modules[name] = parse(path.read_text(), package)
        tables = self.modules["labkit"].defines.get("_WHERE")
        # `labkit.Ranks` and its like are looked up in a table on first use
        self.lazy = ast.literal_eval(tables.value) if isinstance(tables, ast.Assign) else {}
        self.uses = cache(self._uses)

    def find(self, module: str, name: str, depth: int = 8) -> Name | None:
        """Where a name is defined, or the module that it is; None where it is not ours."""
        if not name:
            return (module, "") if module in self.modules else None
        there = self.modules.get(module)
        if there and name in there.defines:
            return module, name
        if there and depth and there.binds.get(name, (module, name)) != (module, name):
            return self.find(*there.binds[name], depth - 1)
        if f"{module}.{name}" in self.modules:
            return f"{module}.{name}", ""
        if module == "labkit" and name in self.lazy:
            return self.find(self.lazy[name], name, depth - 1)
        return None

    def named(self, node: ast.AST, module: Module, home: str = "") -> set[Name]:
        """Everything of ours that a piece of code names."""
        found: set[Name] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                for where, name in TEXT.findall(part.value):
                    found |= {there} if (there := self.find(where, name)) else set()
            first, *rest = chain(part)
            if not first or not (first in module.binds or first in module.defines):
                continue
            there = self.find(home, first) if first in module.defines else self.find(*module.binds[first])
            for name in rest:
                if there is None or there[1]:
                    break
                there = self.find(there[0], name) or there
            if there:
                found.add(there)
        return found

    def _uses(self, one: Name) -> frozenset[Name]:
        module, name = one
        there = self.modules[module]
        nodes = [there.defines[name]] if name else []
        return frozenset(there for node in nodes for there in self.named(node, self.modules[module], module))

    def reached(self, roots: Iterable[Name]) -> set[Name]:
        """Everything that roots lead to, themselves included."""
        found: set[Name] = set()
        left = [there for root in roots if (there := self.find(*root))]
        entered: set[str] = set()
        while left:
            one = left.pop()
            if one in found:
                continue
            found.add(one)
            left += self.uses(one)
            if one[0] not in entered:
                entered.add(one[0])
                home = self.modules[one[0]]
                left += [there for node in home.runs for there in self.named(node, home, one[0])]
        return found

    def size(self, reached: set[Name]) -> dict[str, int]:
        """Lines of code by module: of what is reached, and of what belongs to no definition in a module that is."""
        lines: dict[str, set[int]] = defaultdict(set)
        for module, name in reached:
            there = self.modules[module]
            lines[module] |= there.own_lines
            if name:
                lines[module] |= there.lines & set(span(there.defines[name]))
            while module := module.rpartition(".")[0]:  # an import of a module runs its packages first
                if module in self.modules:
                    lines[module] |= self.modules[module].own_lines
        return {module: len(found) for module, found in lines.items()}

    def everything(self, *prefixes: str) -> set[Name]:
        """Every definition of the modules below these dotted names."""
        below = [m for m in self.modules if any(m == p or m.startswith(f"{p}.") for p in prefixes)]
        return {(m, name) for m in below for name in self.modules[m].defines} | {(m, "") for m in below}

    def in_texts(self, texts: Iterable[str]) -> set[Name]:
        """What programs outside of our packages name."""
        found: set[Name] = set()
        for text in texts:
            module = parse(text)
            found |= self.named(module.tree, Module(module.tree, set(), {}, module.binds))
        return found

    def imports(self) -> dict[str, set[str]]:
        """For each module those that it imports: at its top, later, or for types only."""
        found: dict[str, set[str]] = {}
        for name, module in self.modules.items():
            nodes = list(ast.walk(module.tree))
            pairs = [(str(n.module), a.name) for n in nodes if isinstance(n, ast.ImportFrom) and ours(n.module)
                     for a in n.names]  # fmt: skip
            pairs += [
                (a.name, "") for n in nodes if isinstance(n, ast.Import) for a in n.names if ours(a.name)
            ]
            found[name] = {where[0] for pair in pairs if (where := self.find(*pair))} - {name}
        return found

    def circles(self) -> list[list[str]]:
        """The sets of modules each of which imports the others, directly or through others."""
        graph = self.imports()
        ahead: dict[str, set[str]] = {}
        for start in graph:
            seen, left = set(), list(graph[start])
            while left:
                one = left.pop()
                if one not in seen:
                    seen.add(one)
                    left += graph.get(one, ())
            ahead[start] = seen
        rings = {frozenset(b for b in ahead[a] if a in ahead.get(b, ())) for a in graph if a in ahead[a]}
        return sorted(sorted(ring) for ring in rings)


def chain(node: ast.AST) -> list[str]:
    """The names of a dotted expression, as ['labkit', 'views', 'strip']; [''] for another one."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else [""]


def cells() -> dict[str, str]:
    """The code of all cells of each notebook, without magics, by the notebook's name."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        code = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        lines = [line for cell in code for line in ["pass", *"".join(cell["source"]).splitlines()]]
        found[path.stem] = "\n".join("pass" if line.startswith(("%", "!")) else line for line in lines)
    return found


def dotted_names() -> dict[str, set[str]]:
    """The dotted names of ours that cells use, with the notebooks that use each. An import alone is no use."""
    found: dict[str, set[str]] = defaultdict(set)
    for book, text in cells().items():
        whole = parse(text)
        for node in ast.walk(whole.tree):
            names = chain(node)
            if names[0] in whole.binds and (len(names) > 1 or whole.binds[names[0]][1]):
                module, name = whole.binds[names[0]]
                dotted = ".".join(filter(None, [module, name, *names[1:]]))
                found[dotted].add(book)
    return longest(found)


def longest(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without names that only lead to a longer one, as `labkit.views` leads to `labkit.views.strip`."""

    def leads(name: str, book: str) -> bool:
        return any(book in books and other.startswith(f"{name}.") for other, books in found.items())

    kept = {name: {book for book in books if not leads(name, book)} for name, books in found.items()}
    return {name: books for name, books in kept.items() if books}
