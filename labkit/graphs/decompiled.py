"""Bytecode for reading: `dis`, and depyf's Python form of it with the bookkeeping folded away."""

from __future__ import annotations

import ast
import dis
import io
import re
from types import CodeType

from labkit import places
from labkit.graphs.simplify import simplify

__all__ = ["decompile", "disassemble", "tidy"]

MOST_BYTES = 40_000  # of bytecode that depyf is given: it takes seconds for more
_UNIQUE = re.compile(r"(__compiled_fn_\d+)(?:_[0-9a-f]{6,}(?:_[0-9a-f]{4,})*)")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_TEMPORARY = re.compile(r"^_*te?mp_\d+$|^__temp_\d+$")
_BOOKKEEPING = "record_pregraph_bytecode"


def disassemble(code: CodeType) -> str:
    """What `dis` prints for one code object, without addresses and folders.

    >>> print(disassemble((lambda x: x).__code__).splitlines()[-1].split()[-1])
    RETURN_VALUE
    """
    out = io.StringIO()
    dis.dis(code, file=out, depth=0)
    return clean(out.getvalue()).strip("\n")


def decompile(code: CodeType) -> tuple[str, str]:
    """The Python form of `code`, and why there is none: one of the two is empty."""
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
    """Without what differs from run to run: addresses, folders, the random part of `__compiled_fn_k`.

    >>> clean("__compiled_fn_2_c55e5637_6128_4017_9e76_6955dfe58331(x, w)")
    '__compiled_fn_2(x, w)'
    """
    return places.rewrite(_ADDRESS.sub("", _UNIQUE.sub(r"\1", text)))


def tidy(source: str) -> str:
    """depyf's form without Dynamo's bookkeeping: profiler marks, empty lists, values that nobody uses.

    >>> print(tidy("def f(x):\\n    __temp_2 = []\\n    __temp_2.extend([])\\n    [__temp_2]\\n    return x"))
    def f(x):
        return x
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    tree = _Builtins().visit(tree)
    for node in [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]:
        while _drop(node):
            pass
        _Marks().visit(node)
        while _drop(node):
            pass
        if isinstance(node, ast.FunctionDef) and simplify(node):
            while _drop(node):
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


def _drop(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
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
            kept = [s for s in block if not _idle(s, used)]
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


def _idle(statement: ast.stmt, used: set[str]) -> bool:
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
