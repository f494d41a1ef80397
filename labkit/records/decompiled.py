"""Bytecode made readable: what `dis` prints, and depyf's Python form without Dynamo's bookkeeping."""

from __future__ import annotations

import ast
import dis
import io
import re
from types import CodeType

from labkit import places

__all__ = ["decompile", "disassemble", "simplify"]

MOST_BYTES = 40_000  # of bytecode that depyf is given: it takes seconds for more
_UNIQUE = re.compile(r"(__compiled_fn_\d+)(?:_[0-9a-f]{6,}(?:_[0-9a-f]{4,})*)")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_TEMPORARY = re.compile(r"^_*te?mp_\d+$")
_BOOKKEEPING = "record_pregraph_bytecode"


def disassemble(code: CodeType) -> str:
    """Return what `dis` prints for one code object, without addresses and folders.

    >>> print(disassemble((lambda x: x).__code__).splitlines()[-1].split()[-1])
    RETURN_VALUE
    """
    out = io.StringIO()
    dis.dis(code, file=out, depth=0)
    return clean(out.getvalue()).strip("\n")


def decompile(code: CodeType) -> tuple[str, str]:
    """Decompile `code` with depyf.

    Returns:
        The Python source, and the reason why there is none; one of the two is empty.
    """
    if len(code.co_code) > MOST_BYTES:
        return (
            "",
            f"its bytecode is {len(code.co_code):,} bytes long, too long to decompile in reasonable time",
        )
    try:
        import depyf
    except ImportError:
        return "", "depyf is not installed"
    try:
        found = depyf.decompile(code)
    except Exception as error:  # it raises whatever it runs into: unknown instructions, an empty stack
        said = str(error).removeprefix("DecompilationError: ").strip().splitlines()
        return "", f"depyf cannot decompile it ({type(error).__name__}: {said[0] if said else ''})"
    return clean(str(found)).strip("\n"), ""


def clean(text: str) -> str:
    """Remove from a text what differs from run to run: addresses, folders, the random part of `__compiled_fn_k`.

    >>> clean("__compiled_fn_2_c55e5637_6128_4017_9e76_6955dfe58331(x, w)")
    '__compiled_fn_2(x, w)'
    """
    return places.rewrite(_ADDRESS.sub("", _UNIQUE.sub(r"\1", text)))


def simplify(source: str) -> str:
    """Remove Dynamo's bookkeeping from depyf's source: profiler marks, temporary lists, values that nobody uses.

    >>> print(simplify("def f(x):\\n    __temp_2 = []\\n    __temp_2.extend([])\\n    [__temp_2]\\n    return x"))
    def f(x):
        return x
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    tree = _Builtins().visit(tree)
    for node in [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]:
        while _drop_dead_code(node):
            pass
        _Marks().visit(node)
        while _drop_dead_code(node):
            pass
        if isinstance(node, ast.FunctionDef) and inline_lists(node):
            while _drop_dead_code(node):
                pass
    return ast.unparse(ast.fix_missing_locations(tree))


class _Builtins(ast.NodeTransformer):
    """`__builtins_dict___1['print']` is `print`, and `x[slice(0, 1)]` is `x[0:1]`."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        of, key = node.value, node.slice
        if (
            isinstance(of, ast.Name)
            and of.id.startswith("__builtins_dict__")
            and isinstance(key, ast.Constant)
        ):
            return ast.Name(str(key.value), node.ctx)
        if isinstance(key, ast.Call) and isinstance(key.func, ast.Name) and key.func.id == "slice":
            ends = [None if isinstance(a, ast.Constant) and a.value is None else a for a in key.args]
            lower, upper = ends[:2] if len(ends) > 1 else (None, ends[0])
            return ast.Subscript(of, ast.Slice(lower, upper, *ends[2:3]), node.ctx)
        return node


class _Marks(ast.NodeTransformer):
    """What torch 2.15 leaves of its profiler marks: conditions on a temporary that choose nothing.

    `if tmp_3: pass` goes, and of `if tmp_1 is not None:` with the same code in both branches one branch stays.
    """

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt] | None:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        names = [n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)]
        if not names or not all(_TEMPORARY.match(name) for name in names):
            return node
        if any(isinstance(n, ast.Call) for n in ast.walk(node.test)):
            return node
        body, other = ([ast.dump(s) for s in part] for part in (node.body, node.orelse or [ast.Pass()]))
        if body != other:
            return node
        return None if not node.orelse else node.body


def _drop_dead_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Remove what has no effect from a function's body; says whether anything was removed."""
    used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    # a name that is only extended by nothing is not used
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and _extends_by_nothing(node):
            node.value = ast.Constant(None)  # type: ignore[attr-defined]
            return True
    removed = False
    for node in ast.walk(function):
        for part in ("body", "orelse"):
            block = getattr(node, part, None)
            if not isinstance(block, list):
                continue
            kept = [s for s in block if not _has_no_effect(s, used)]
            if len(kept) < len(block):
                setattr(node, part, kept or ([ast.Pass()] if part == "body" else []))
                removed = len(kept) > 0 or not isinstance(block[0], ast.Pass)
    return removed


def _extends_by_nothing(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    if not (
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "extend"
    ):
        return False
    return bool(call.args) and isinstance(call.args[0], ast.List) and not call.args[0].elts


def _has_no_effect(statement: ast.stmt, used: set[str]) -> bool:
    if not isinstance(statement, (ast.Expr, ast.Assign)):
        return False
    if _BOOKKEEPING in ast.unparse(statement):
        return True
    quiet = not any(isinstance(n, (ast.Call, ast.Await, ast.Yield)) for n in ast.walk(statement.value))
    if isinstance(statement, ast.Expr):
        return quiet
    names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
    mine = len(names) == len(statement.targets) and all(_TEMPORARY.match(name) for name in names)
    return quiet and mine and not used & set(names)


class _Unknown(Exception):
    """A statement that cannot be followed: the function stays as it is."""


class _List(list):
    """A list whose items are known, each an expression or such a list again; several names may mean the same one."""


def inline_lists(function: ast.FunctionDef) -> bool:
    """Rewrite a function's body in place, without the lists that Dynamo's bytecode fills only to pass them on.

    Returns:
        False if the body could not be followed to its end; it then stays as it is.

    Calls stay where they were, in their order: a call that was an item of a list is given a name.

    >>> code = "def f(x):\\n    __temp_1 = [x]\\n    __temp_1[0:0] = [g()]\\n    return h(*__temp_1)"
    >>> tree = ast.parse(code)
    >>> inline_lists(tree.body[0])
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
