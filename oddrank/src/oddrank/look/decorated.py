"""Which class's forward a decorator's code was compiled for: classes share the code of a decorator."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import nn

from oddrank import torch_names
from oddrank.record import install
from oddrank.record.compiles import Try
from oddrank.record.payloads import resumed

__all__ = ["noting", "wrappers"]


@contextlib.contextmanager
def noting() -> Iterator[None]:
    """Let each compile that begins in a block know its owner."""
    log = install().compiles
    log.listeners.append(_note)
    try:
        yield
    finally:
        log.listeners.remove(_note)


def _note(one: Try) -> None:
    row = one.row
    frame, caller = torch_names.being_compiled()
    if row.owner or frame is None:
        return
    code, (name, rest) = frame.f_code, resumed(frame.f_code.co_name)
    if (code.co_filename, name, rest) != (row.file, row.func, row.resume):
        return  # a backward is compiled while another frame is
    if not rest:
        row.owner = _owner(code, frame.f_locals)
    while (
        rest and caller is not None
    ):  # the rest of a function is called by its beginning, which has the module
        if (caller.f_code.co_filename, caller.f_code.co_name) == (code.co_filename, name):
            row.owner = _owner(caller.f_code, caller.f_locals)
            return
        caller = caller.f_back


def wrappers(kind: type[nn.Module]) -> Iterator[CodeType]:
    """The code of all that decorates a class's forward, the outermost first."""
    fn: Any = kind.forward
    while hasattr(fn, "__wrapped__"):
        if (code := getattr(fn, "__code__", None)) is not None:
            yield code
        fn = fn.__wrapped__


def _owner(code: CodeType, held: Any) -> str:
    """The forward that some code decorates, by the module that it was called with."""
    if code.co_argcount:
        module = held.get(code.co_varnames[0])
    elif code.co_flags & inspect.CO_VARARGS:
        module = next(iter(held.get(code.co_varnames[code.co_kwonlyargcount]) or ()), None)
    else:
        return ""
    if not isinstance(module, nn.Module):
        return ""
    at = code.co_filename, code.co_firstlineno
    if at not in {(one.co_filename, one.co_firstlineno) for one in wrappers(type(module))}:
        return ""
    return f"{type(module).__qualname__.rpartition('<locals>.')[2]}.forward"
