"""Notebook cells on the ranks: their sources travel with calls; `%%ranks` bodies run in a namespace that persists."""

from __future__ import annotations

import ast
import linecache
import sys
from typing import Any

from oddrank.live.stacks import hide

from labkit.ranks import transfer
from oddrank import places

hide(__file__)

# the module that %%ranks cells run in, apart from what functions of the kernel bring along
CELLS = "__ranks__"
namespace: dict[str, Any] = vars(transfer.create_module(CELLS))
# in the kernel, by file name: linecache's entry, and what known_sources returns for it
_known: dict[str, tuple[Any, tuple[str, str]]] = {}
_found: tuple[Any, dict[str, tuple[str, str]]] = None, {}


def known_sources() -> dict[str, tuple[str, str]]:
    """Return the sources of the kernel's cells.

    Returns:
        By the file name that a cell was compiled under: its label, such as 'In [5]', and its text. Empty outside
        IPython. It is the same dictionary until a cell runs.
    """
    global _found
    last, count = next(reversed(linecache.cache), None), getattr(shell(), "execution_count", 0)
    if _found[0] == (state := (len(linecache.cache), last, count)):
        return _found[1]
    found: dict[str, tuple[str, str]] = {}
    for filename, entry in list(linecache.cache.items()):
        # IPython's entries have no mtime, so that they are never dropped
        if len(entry) == 4 and entry[1] is None:
            # IPython makes a new entry each time that a cell runs
            known = _known.get(filename)
            if (known is None or known[0] is not entry) and (label := label_of(filename)):
                known = _known[filename] = entry, (label, "".join(entry[2]))
                places.register(filename, label)  # for what the kernel itself has to say, as about a crash
            if known:
                found[filename] = known[1]
    _found = state, found
    return found


def shell() -> Any:
    """Return the IPython shell of this process, None outside IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def label_of(filename: str) -> str:
    """Return the label, such as 'In [5]', of the cell that was compiled under a file name; '' if it is no cell's."""
    ipython = shell()
    named = ipython.compile.format_code_name(filename) if ipython else None
    return named[1].replace("[", " [", 1) if named else ""


def learn(sources: dict[str, tuple[str, str]]) -> None:
    """Put cell sources where tracebacks, inspect and Dynamo's break reports look for them; called in a rank."""
    for filename, (label, text) in sources.items():
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        places.register(filename, label)


def run(source: str, filename: str, first_line: int) -> Any:
    """Run a `%%ranks` body in a rank.

    Args:
        source: The body.
        filename: The name of the cell.
        first_line: The line of the cell in which the body begins.

    Returns:
        The value of its last expression; None for a statement, or after a semicolon, as in any cell.
    """
    whole = "\n" * (first_line - 1) + source
    learn({filename: (filename, whole)})
    tree = ast.parse(whole, filename)
    shown = tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";")
    last: Any = tree.body.pop() if shown else None
    exec(compile(tree, filename, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), filename, "eval"), namespace) if last else None
