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
    where = next(itertools.islice(code.co_positions(), at // 2, None))
    nodes = [
        node for node in parents(file) if isinstance(node, (ast.expr, ast.While)) and _position(node) == where
    ]
    found = next((node for node in nodes if isinstance(node, ast.expr)), None)
    if (
        found is None
        and nodes
        and isinstance(nodes[0], ast.While)
        and not isinstance(nodes[0].test, ast.BoolOp)
    ):
        return nodes[0].test  # that a loop goes on is asked in the name of the whole statement
    return found


def called_at(file: str, code: CodeType, at: int) -> ast.Call | None:
    """Return the call that an instruction makes; None where it makes none."""
    found = expression_at(file, code, at)
    return found if isinstance(found, ast.Call) else None


def _position(node: ast.expr | ast.While) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
