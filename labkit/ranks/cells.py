"""Notebook cells on the ranks: their sources travel along, and `%%ranks` bodies run in a namespace that persists."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from typing import Any

from labkit import places
from labkit.ranks import transfer

CELLS = (
    "__ranks__"  # the module that %%ranks cells run in, apart from what functions of the kernel bring along
)
namespace: dict[str, Any] = vars(transfer.create_module(CELLS))


def known_sources() -> dict[str, tuple[str, str]]:
    """In the kernel: {file name that a cell was compiled under: (label such as 'In [5]', source text)}.

    Outside IPython there are no cells, and the result is empty.
    """
    shell = _shell()
    if shell is None:
        return {}
    found = {}
    for filename, entry in list(linecache.cache.items()):
        if (
            len(entry) == 4 and entry[1] is None
        ):  # IPython's entries have no mtime, so that they are never dropped
            named = shell.compile.format_code_name(filename)
            if named:
                label = re.sub(r"\[", " [", named[1], count=1)
                found[filename] = (label, "".join(entry[2]))
                places.register(filename, label)  # for what the kernel itself has to say, as about a crash
    return found


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def learn(sources: dict[str, tuple[str, str]]) -> None:
    """In a rank: put cell sources where tracebacks, inspect and Dynamo's break reports look for them."""
    for filename, (label, text) in sources.items():
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        places.register(filename, label)


class Shown:
    """A value that could not travel, as its text."""

    def __init__(self, text: str, html: str | None = None):
        self.text, self.html = text, html

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str | None:
        return self.html


def run(source: str, filename: str, first_line: int) -> Any:
    """In a rank: run a `%%ranks` body and return the value of its last expression (None for a statement).

    A trailing semicolon hides the value, as in any cell.
    """
    learn({filename: (filename, "\n" * (first_line - 1) + source)})
    tree = ast.parse("\n" * (first_line - 1) + source, filename)
    value = None
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
        exec(compile(tree, filename, "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), filename, "eval"), namespace)
        if source.rstrip().endswith(";"):
            value = None
    else:
        exec(compile(tree, filename, "exec"), namespace)
    return _travelling(value)


def _travelling(value: Any) -> Any:
    from labkit.ranks import wire

    try:
        wire.pack(value)
        return value
    except Exception:
        render = getattr(value, "_repr_html_", None)
        return Shown(repr(value), render() if callable(render) else None)


def push(values: dict[str, Any]) -> None:
    """In a rank: define names in the `%%ranks` namespace."""
    namespace.update(values)


def pull(name: str) -> Any:
    """In a rank: the value of a name in the `%%ranks` namespace. Raises NameError when it is not defined."""
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined in the %%ranks namespace")
    return namespace[name]
