"""Pickles of functions, kept while nothing that they are made of has changed.

A reader calls one function many times. cloudpickle takes 2 ms for a function that names `torch`, since it compares the
name of every imported module with those in the function's code. Looking at what the function is made of takes a
hundredth of that.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from operator import is_
from types import BuiltinFunctionType, CellType, CodeType, EllipsisType, FunctionType, ModuleType, NoneType
from typing import Any

import cloudpickle.cloudpickle as by_value

LONG = 1 << 20  # bytes of a pickle that is not kept
PARTS = 2000  # a function of more is pickled each time, which is no slower then
_UNCHANGING = {NoneType, EllipsisType, bool, int, float, complex, str, bytes, CodeType}
_END, _AGAIN = object(), object()  # mark where the contents of a part end, and what was there before
_kept: weakref.WeakKeyDictionary[Any, tuple[list[Any], bytes]] = weakref.WeakKeyDictionary()


def pickled(fn: Callable[..., Any], pickle: Callable[[], bytes]) -> bytes:
    """Return the pickle of a function: the last one where that is still right, else a new one.

    Args:
        fn: The function.
        pickle: Makes a new one.

    >>> pickled(lambda: 1, lambda: b"made")
    b'made'
    """
    parts = _parts(fn) if type(fn) is FunctionType else None
    if parts is None:
        return pickle()
    last, data = _kept.get(fn, ([], b""))
    # the objects themselves: what is equal may still be pickled in another way
    if len(last) != len(parts) or not all(map(is_, last, parts)):
        data = pickle()
        if len(data) < LONG:
            _kept[fn] = parts, data
    return data


def global_variables(fn: FunctionType) -> dict[str, Any]:
    """Return the variables of its module that a function, and the functions in it, use."""
    names = by_value._extract_code_globals(fn.__code__)
    return {name: fn.__globals__[name] for name in names if name in fn.__globals__}


def _parts(fn: FunctionType) -> list[Any] | None:
    """Every object that the pickle of a function depends on; None where a change of one would not be seen.

    It holds nothing that a reader may change or drop: containers are there by type, functions and classes weakly.
    """
    # cloudpickle adds the submodules that the code names and that have been imported by then
    parts: list[Any] = [next(reversed(sys.modules))]
    seen: dict[int, int] = {}
    left: list[Any] = [fn]
    while left:
        part = left.pop()
        kind = type(part)
        named = isinstance(part, ModuleType | FunctionType | type)
        if part is _END or _constant(part, kind) or named and by_value._should_pickle_by_reference(part):
            parts.append(part)
        elif id(part) in seen:
            parts += _AGAIN, seen[id(part)]
        else:
            inner = _inner(part, kind)
            if inner is None or len(inner) + len(parts) > PARTS:
                return None
            seen[id(part)] = len(seen)
            parts.append(weakref.ref(part) if named else kind)
            if _UNCHANGING.issuperset(map(type, inner)):
                parts += *inner, _END
            else:
                left += _END, *inner
    return parts


def _constant(part: Any, kind: type) -> bool:
    if kind is BuiltinFunctionType:  # `items.append` travels with its list
        return part.__self__ is None or isinstance(part.__self__, ModuleType)
    return kind in _UNCHANGING or kind.__module__ == "torch" and kind.__name__ in ("dtype", "device")


def _inner(part: Any, kind: type) -> list[Any] | None:
    """What an object consists of, as objects that are the same at each look; None where that is not known."""
    if kind in (tuple, list):
        return list(part)
    if kind is dict:
        return [*part.keys(), *part.values()]
    if kind is FunctionType:
        words = part.__name__, part.__qualname__, part.__module__, part.__doc__
        rest = part.__closure__, part.__defaults__, part.__kwdefaults__, part.__annotations__, vars(part)
        used = global_variables(part)
        return [part.__code__, *words, *filter(None, rest), *used.keys(), *used.values()]
    if kind is CellType and part != CellType():
        return [part.cell_contents]
    if kind in (staticmethod, classmethod):
        return [part.__func__]
    if kind is property:
        return [part.fget, part.fset, part.fdel, part.__doc__]
    if isinstance(part, type):
        entries = {
            name: value for name, value in vars(part).items() if name not in ("__dict__", "__weakref__")
        }
        return [kind, part.__name__, part.__qualname__, part.__bases__, *entries.keys(), *entries.values()]
    return None
