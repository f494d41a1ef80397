"""Lists that Dynamo's bytecode fills only to pass them on: what is passed is put where it is passed."""

from __future__ import annotations

import ast
import re

__all__ = ["simplify"]

_TEMPORARY = re.compile(r"^_*te?mp_\d+$")


class _Unknown(Exception):
    """A statement that cannot be followed: the function stays as it is."""


class _List(list):
    """A list whose items are known, each an expression or such a list again; several names may mean the same one."""


def simplify(function: ast.FunctionDef) -> bool:
    """Rewrite a function's body without its temporary lists, in place; says whether it could be followed to its end.

    Calls stay where they were, in their order: a call that was an item of a list is given a name.

    >>> code = "def f(x):\\n    __temp_1 = [x]\\n    __temp_1[0:0] = [g()]\\n    return h(*__temp_1)"
    >>> tree = ast.parse(code)
    >>> simplify(tree.body[0])
    True
    >>> print(ast.unparse(tree))
    def f(x):
        held_0 = g()
        return h(held_0, x)
    """
    follower = _Follower()
    try:
        body = follower.follow(function.body)
    except _Unknown:
        return False
    function.body = body or [ast.Pass()]
    ast.fix_missing_locations(function)
    return True


class _Follower:
    def __init__(self) -> None:
        self.known: dict[str, _List | ast.expr] = {}
        self.out: list[ast.stmt] = []
        self.held = 0

    def follow(self, body: list[ast.stmt]) -> list[ast.stmt]:
        for statement in body:
            self._statement(statement)
        return self.out

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and _TEMPORARY.match(target.id):
                value = self._value(statement.value)
                self.known[target.id] = value if isinstance(value, _List) else self._hold(value)
                return
            if isinstance(target, ast.Subscript):
                of = self._value(target.value)
                if isinstance(of, _List):
                    self._store(of, target.slice, self._value(statement.value))
                    return
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if isinstance(call.func, ast.Attribute) and call.func.attr == "extend" and len(call.args) == 1:
                of, more = self._value(call.func.value), self._value(call.args[0])
                if isinstance(of, _List):
                    if not isinstance(more, _List):
                        raise _Unknown
                    of.extend(more)
                    return
        if isinstance(statement, (ast.Assign, ast.Expr, ast.Return, ast.Pass, ast.Delete)):
            self.out.append(_Render(self.known).visit(statement))
        elif any(isinstance(n, ast.Name) and n.id in self.known for n in ast.walk(statement)):
            raise _Unknown  # a branch or a loop that uses such a list
        else:
            self.out.append(statement)

    def _value(self, node: ast.expr) -> _List | ast.expr:
        """What an expression is: a known list, or itself with known lists written out."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id, node)
        if isinstance(node, ast.List) and not any(isinstance(item, ast.Starred) for item in node.elts):
            return _List(self._item(item) for item in node.elts)
        if isinstance(node, ast.Subscript):
            of = self._value(node.value)
            if isinstance(of, _List):
                at = _index(node.slice)
                try:
                    return _List(of[at]) if isinstance(at, slice) else of[at]
                except IndexError:
                    raise _Unknown from None
        return _Render(self.known).visit(node)

    def _item(self, node: ast.expr) -> _List | ast.expr:
        value = self._value(node)
        return value if isinstance(value, _List) else self._hold(value)

    def _hold(self, value: ast.expr) -> ast.expr:
        """A call keeps its place: its result gets a name there."""
        if not any(isinstance(n, ast.Call) for n in ast.walk(value)):
            return value
        name = f"held_{self.held}"
        self.held += 1
        self.out.append(ast.Assign([ast.Name(name, ast.Store())], value))
        return ast.Name(name, ast.Load())

    def _store(self, of: _List, at: ast.expr, value: _List | ast.expr) -> None:
        where = _index(at)
        if isinstance(where, slice):
            if not isinstance(value, _List):
                raise _Unknown
            of[where] = list(value)
        elif -len(of) <= where < len(of):
            of[where] = value if isinstance(value, _List) else self._hold(value)
        else:
            raise _Unknown


def _index(node: ast.expr) -> int | slice:
    """A constant index or slice."""
    if isinstance(node, ast.Slice):
        ends = [
            None if part is None else ast.literal_eval(part) for part in (node.lower, node.upper, node.step)
        ]
        return slice(*ends)
    try:
        found = ast.literal_eval(node)
    except ValueError:
        raise _Unknown from None
    if not isinstance(found, int):
        raise _Unknown
    return found


class _Render(ast.NodeTransformer):
    """Writes known lists out where they are used, and as arguments where they are passed with a star."""

    def __init__(self, known: dict[str, _List | ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and node.id in self.known:
            return _written(self.known[node.id])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        arguments: list[ast.expr] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.List):
                arguments += argument.value.elts
            else:
                arguments.append(argument)
        node.args = arguments
        return node


def _written(value: _List | ast.expr) -> ast.expr:
    return ast.List([_written(item) for item in value], ast.Load()) if isinstance(value, _List) else value
