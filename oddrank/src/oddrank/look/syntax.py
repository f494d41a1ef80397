"""The program's text as a syntax tree: what stands around a node, and the node of an instruction."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from types import CodeType
from typing import Any

__all__ = ["around", "called_at", "expression_at", "parents"]


@functools.cache
def parents(file: str) -> dict[ast.AST, ast.AST]:
    """Return the node around each node of a file."""
    tree = ast.parse("".join(linecache.getlines(file)))
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def around(node: Any, above: dict[ast.AST, ast.AST], kinds: tuple[type, ...]) -> Any:
    """Return the innermost node of these kinds around a node, or itself; else the module.

    Args:
        node: The node.
        above: What `parents` gave.
        kinds: Classes of nodes.
    """
    while node in above and not isinstance(node, kinds):
        node = above[node]
    return node


def expression_at(file: str, code: CodeType, at: int) -> ast.expr | None:
    """Return the expression whose value an instruction gives, or whose truth it asks; None where there is none.

    Args:
        file: The file of the code.
        code: The code.
        at: The offset of the instruction.
    """
    where: tuple[int | None, ...] = next(itertools.islice(code.co_positions(), at // 2, None), ())
    found = _by_position(file).get(where)
    if isinstance(found, ast.While):  # that a loop goes on is asked in the name of the whole statement
        return None if isinstance(found.test, ast.BoolOp) else found.test
    return found


@functools.cache
def _by_position(file: str) -> dict[tuple[int | None, ...], ast.expr | ast.While]:
    nodes = [node for node in parents(file) if isinstance(node, (ast.expr, ast.While))]
    # the outer one of those at one place
    return {(n.lineno, n.end_lineno, n.col_offset, n.end_col_offset): n for n in reversed(nodes)}


def called_at(file: str, code: CodeType, at: int) -> ast.Call | None:
    """Return the call that an instruction makes; None where it makes none."""
    found = expression_at(file, code, at)
    return found if isinstance(found, ast.Call) else None
