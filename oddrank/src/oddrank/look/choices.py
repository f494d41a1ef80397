"""Branches that a program takes by a value of a tensor, a random number or a file, with what it read there."""

from __future__ import annotations

import ast
import contextlib
import functools
import operator
import os.path
import pathlib
import random
import reprlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from sys import _getframe
from types import CodeType
from typing import Any, NamedTuple

import torch

from oddrank import places
from oddrank.look.steps import wrapped
from oddrank.look.syntax import around, expression_at, parents
from oddrank.torch_names import hide_from_dynamo

__all__ = ["Choice", "Choices", "forget", "latest"]

KEPT = 256
DEEP = 4  # functions that hand a value on to their callers
LONG = 40  # characters of a value, and of a test
_READS = {"item": ".item()", "tolist": ".tolist()"}
_READS |= {"__bool__": "a tensor", "__int__": "int()", "__float__": "float()"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_OF_MANY = (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.IfExp)
_FILES: tuple[tuple[Any, str, str], ...] = (
    *((os.path, name, f"os.path.{name}()") for name in ("exists", "isfile", "isdir")),
    *((pathlib.Path, name, f"Path.{name}()") for name in ("exists", "is_file", "is_dir")),
)
_DRAWS = ("random", "randint", "randrange", "uniform", "choice")
_PLAIN = (int, float, str, bool, type(None), list)
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    **{ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b},
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
}
_CALLS: dict[str, Callable[..., Any]] = {"int": int, "float": float, "bool": bool, "abs": abs, "round": round}

_latest: deque[tuple[Any, ...]] = deque(maxlen=KEPT)  # of this process


class Choice(NamedTuple):
    """A value that a program read, and the branch that it took by it.

    Attributes:
        time_ns: The `time.time_ns()` of the read.
        call: What read it, such as '.item()'.
        place: The line that read it.
        value: The value, in short.
        branch: The line of the branch.
        test: Its test, in short.
        took: What the test gave; None where that is not known.
        spans: First and last lines of what only one of its sides runs: its statement, and what it may leave early.
        seed: Of torch's random generator.
    """

    time_ns: int
    call: str
    place: str
    value: str
    branch: str
    test: str
    took: bool | None
    spans: list[tuple[int, int]]
    seed: int


class _Unknown(Exception):
    """The value of an expression that is not looked into."""


class _Plan(NamedTuple):
    """What a value that an instruction reads does in its function."""

    read: ast.expr  # what the value stands for
    bound: str  # the name that `whole` is given; '' for none
    whole: ast.expr  # what is bound, returned or tested
    branch: ast.If | ast.While | ast.Assert | None  # None where it is returned


class Choices:
    """Notes values on which the program's own lines branch, on the main thread. Values that decide nothing are left."""

    def __init__(self) -> None:
        # by the id of a code, which is kept with it, and the instruction: to hash a long function takes microseconds
        self._plans: dict[tuple[int, int], tuple[CodeType, _Plan | None]] = {}
        self._main = threading.main_thread().ident

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note them in a block; torch, random and os.path are as they were afterwards."""
        forget()
        reads: list[tuple[Any, str, str]] = [(torch.Tensor, name, said) for name, said in _READS.items()]
        reads += _FILES
        reads += [(random, name, f"random.{name}()") for name in _DRAWS]
        with contextlib.ExitStack() as undo:
            for owner, name, said in reads:
                before, inherited = getattr(owner, name), name not in vars(owner)
                setattr(
                    owner, name, _named(wrapped(before, functools.partial(self._read, said)), owner, name)
                )
                undo.callback(delattr, owner, name) if inherited else undo.callback(
                    setattr, owner, name, before
                )
            yield

    def _read(self, said: str, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        if threading.get_ident() == self._main:
            self._note(said, value)
        return value

    def _note(self, said: str, value: Any) -> None:
        frame: Any = _getframe(3)  # past this function, the one that calls it, and the wrapper
        plan = self._plan(frame)
        if plan is not None:
            with contextlib.suppress(Exception):  # the program goes on
                self._keep(said, value, frame, plan)

    def _plan(self, frame: Any) -> _Plan | None:
        code, at = frame.f_code, frame.f_lasti
        if (known := self._plans.get((id(code), at))) is not None:
            return known[1]
        plan = None
        if not places.is_library(code.co_filename):
            with contextlib.suppress(Exception):
                plan = _planned(code, at)
        self._plans[id(code), at] = code, plan
        return plan

    def _keep(self, said: str, value: Any, frame: Any, plan: _Plan) -> None:
        now, where = time.time_ns(), (frame.f_code, frame.f_lineno)
        given: Any = value if isinstance(value, _PLAIN) else _Unknown
        for _ in range(DEEP):
            if plan.branch is not None:
                break
            given, frame = _given(plan.whole, plan, given, frame), frame.f_back
            following = self._plan(frame)
            if following is None:
                return
            plan = following
        if plan.branch is None:
            return
        if plan.bound and plan.whole is not plan.read:
            given = _given(plan.whole, plan._replace(bound=""), given, frame)
        took = _given(plan.branch.test, plan, given, frame)
        shown = reprlib.repr(value) if isinstance(value, (list, str)) else value  # it may be long
        seen = (now, said, where, shown, frame.f_code, plan, took, torch.default_generator.initial_seed())
        _latest.append(seen)


def _named(fn: Any, owner: Any, name: str) -> Any:
    """The same function under the name at which it stands: so it travels to other processes, as what it replaces."""
    inside = isinstance(owner, type)
    fn.__module__ = owner.__module__ if inside else owner.__name__
    fn.__qualname__ = f"{owner.__qualname__}.{name}" if inside else name
    return fn


def forget() -> None:
    """Forget the choices so far."""
    _latest.clear()


def latest() -> list[Choice]:
    """Return the last choices of this process, oldest first."""
    return [_choice(*one) for one in list(_latest)]


def _choice(
    now: int,
    said: str,
    where: tuple[CodeType, int],
    value: Any,
    code: CodeType,
    plan: _Plan,
    took: Any,
    seed: int,
) -> Choice:
    branch: Any = plan.branch
    taken = None if took is _Unknown else bool(took)
    text = value if isinstance(value, str) else repr(value)
    tests = _short(text), _place(code, branch.lineno), _short(ast.unparse(branch.test)), taken
    return Choice(now, said, _place(*where), *tests, list(_spans(branch, parents(code.co_filename))), seed)


def _place(code: CodeType, line: int) -> str:
    return places.place(code.co_filename, line, "" if code.co_name == "<module>" else code.co_name)


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."


# --- what becomes of a value ---


def _planned(code: CodeType, at: int) -> _Plan | None:
    """What a function does with the value that an instruction gives: it tests, binds and tests, or returns it."""
    above_of = parents(code.co_filename)
    node = expression_at(code.co_filename, code, at)
    if node is None:
        return None
    read: ast.expr = node
    if isinstance(read, ast.UnaryOp) and isinstance(read.op, ast.Not):  # asked is what it turns round
        read = read.operand
    above: Any = node
    while not isinstance(above, ast.stmt):
        if isinstance(above, _OF_MANY):
            return None
        inner, above = above, above_of[above]
    if isinstance(above, (ast.If, ast.While, ast.Assert)):
        return _Plan(read, "", above.test, above) if inner is above.test else None
    if isinstance(above, ast.Return) and above.value is not None:
        return _Plan(read, "", above.value, None)
    if isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
        name = above.targets[0].id
        branch = _tested(name, above, above_of)
        return _Plan(read, name, above.value, branch) if branch is not None else None
    return None


def _tested(name: str, bound: ast.stmt, above: dict[ast.AST, ast.AST]) -> Any:
    """The first branch on a name after what binds it, before it is bound again; or a loop around that asks it."""
    scope = around(bound, above, _FUNCTIONS)
    found: list[Any] = []
    for node in ast.walk(scope):
        if isinstance(node, (ast.If, ast.While, ast.Assert)) and node.lineno > bound.lineno:
            if _names(node.test, name):
                found.append(node)
    first = min(found, key=lambda node: node.lineno, default=None)
    again = [
        node.lineno
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    if first is not None and not any(bound.lineno < line <= first.lineno for line in again):
        return first
    outer: Any = bound
    while outer is not scope:
        outer = above[outer]
        if isinstance(outer, ast.While) and _names(outer.test, name):
            return outer
    return None


def _names(test: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(test))


def _spans(branch: Any, above: dict[ast.AST, ast.AST]) -> Iterator[tuple[int, int]]:
    """The lines of a branch, and of the loops and functions that it may leave."""
    yield branch.lineno, branch.end_lineno
    for node in ast.walk(branch):
        if isinstance(node, ast.Continue):
            yield branch.end_lineno + 1, around(node, above, _LOOPS).end_lineno
        elif isinstance(node, (ast.Break, ast.Return, ast.Raise, ast.Assert)):
            left = around(node, above, _LOOPS if isinstance(node, ast.Break) else _FUNCTIONS)
            if not isinstance(left, ast.Module):
                yield left.lineno, left.end_lineno


def _given(node: ast.expr, plan: _Plan, value: Any, frame: Any) -> Any:
    """What an expression gives where `plan.read`, or the name that is bound to it, has a value; `_Unknown` for more."""
    try:
        return _of(node, plan, value, frame)
    except Exception:
        return _Unknown


def _of(node: Any, plan: _Plan, value: Any, frame: Any) -> Any:
    def of(one: Any) -> Any:
        return _of(one, plan, value, frame)

    if node is plan.read or (isinstance(node, ast.Name) and node.id == plan.bound):
        if value is _Unknown:
            raise _Unknown
        return value
    match node:
        case ast.Constant():
            found = node.value
        case ast.Name() | ast.Attribute():
            found = _held(node, frame)
        case ast.Compare():
            sides = [of(node.left), *map(of, node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            found = all(_COMPARE[type(op)](a, b) for op, a, b in pairs)
        case ast.BoolOp():
            found = _joined(
                isinstance(node.op, ast.And), [_given(one, plan, value, frame) for one in node.values]
            )
        case ast.UnaryOp(op=ast.Not()):
            found = not of(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            found = -of(node.operand)
        case ast.BinOp():
            found = _BINARY[type(node.op)](of(node.left), of(node.right))
        case ast.Subscript():
            found = of(node.value)[of(node.slice)]
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS and not node.keywords:
            found = _CALLS[name](*map(of, node.args))
        case _:
            raise _Unknown
    if not isinstance(found, _PLAIN):
        raise _Unknown
    return found


def _joined(every: bool, parts: list[Any]) -> bool:
    """`and` (`every`) or `or` of parts, of which some may be unknown."""
    known = [bool(part) for part in parts if part is not _Unknown]
    if (not every) in known:
        return not every
    if len(known) < len(parts):
        raise _Unknown
    return every


def _held(node: Any, frame: Any) -> Any:
    """What a name, or an attribute of one, holds; no property is run."""
    if isinstance(node, ast.Name):
        for held in (frame.f_locals, frame.f_globals):
            if node.id in held:
                return held[node.id]
        raise _Unknown
    holder: Any = _held(node.value, frame) if isinstance(node.value, (ast.Name, ast.Attribute)) else _Unknown
    own: list[Any] = [getattr(holder, "__dict__", {}), *map(vars, type(holder).__mro__)]
    for held in own:
        if node.attr in held:
            return held[node.attr]
    raise _Unknown


hide_from_dynamo(Choices._read.__code__)
hide_from_dynamo(Choices._note.__code__, calls=True)
