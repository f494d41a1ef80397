"""Modules that torch.compile was given within others, and that a program calls by themselves: that runs in Python."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from oddrank import places, torch_names
from oddrank.look.callables import Made
from oddrank.look.finding import Finding

__all__ = ["TYPES", "Uncompiled", "bypassed", "often"]

TYPES = {"rank": "int64", "name": "str", "made": "str", "compiled": "int64", "place": "str", "calls": "int64"}
TYPES |= {"shapes": "int64", "file": "str", "line": "int64"}  # of its forward
LEAST = 3  # calls: fewer are a check, or a first look
SHAPES = 2  # shapes of an input: more are a reason not to compile
SHARE = 0.5  # of the parameters: a part, as the head alone, may be meant
_ON_PURPOSE = ("torch/_dynamo/eval_frame.py", "torch/_dynamo/external_utils.py")


class _Known(NamedTuple):
    module: weakref.ref[Any]
    name: str
    of: Made
    file: str
    line: int


class Uncompiled:
    """Counts the calls of modules outside of the compiled call that holds them, once that one was called.

    A hook for all modules tells of them. It is there outside of compiled calls only, so that Dynamo never meets it.

    Attributes:
        hears: Called with each module that is called outside of compiled calls, once the first of these has begun; None
            for nobody.
    """

    def __init__(self) -> None:
        self.hears: Callable[[nn.Module], None] | None = None
        self._entered = False
        self._within, self._around = 0, False
        self._thread = threading.get_ident()
        self._asked: set[int] = set()
        self._known: dict[int, _Known] = {}
        self._found: dict[tuple[int, str], tuple[_Known, list[int], set[tuple[int, ...]]]] = {}
        self._hook: Any = None
        self._undo = contextlib.ExitStack()

    def enter(self, of: Made) -> None:
        """A compiled call begins."""
        if threading.get_ident() != self._thread:
            return
        self._within += 1
        self._unhook()
        if not self._entered and (hears := self.hears) is not None:
            for module in _being_called():
                hears(module)
        self._entered = True

    def leave(self, of: Made) -> None:
        """It has ended."""
        if threading.get_ident() != self._thread:
            return
        self._within -= 1
        if of.whole and id(of) not in self._asked:
            self._asked.add(id(of))
            for part in _parts(of.module()):
                name = type(part).__qualname__.rpartition("<locals>.")[2]
                code = getattr(inspect.unwrap(type(part).forward), "__code__", None)
                at = (places.label(code.co_filename), code.co_firstlineno) if code else ("", 0)
                self._known[id(part)] = _Known(weakref.ref(part), name, of, *at)
        if (self._known or self.hears is not None) and not self._within and self._hook is None:
            if not self._around:
                self._around = True
                self._stay_silent()
            self._hook = register_module_forward_pre_hook(self._called)

    def _stay_silent(self) -> None:
        """Take the hook away before a compiled module asks whether there is one."""
        if (point := torch_names.compiled_module_call()) is not None:
            original, replace = point

            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if not torch.compiler.is_compiling():
                    self._unhook()
                return original(*args, **kwargs)

            torch_names.hide_from_dynamo(call.__code__)  # type: ignore[attr-defined]
            self._undo.enter_context(replace(call))

    def _unhook(self) -> None:
        if self._hook is not None and threading.get_ident() == self._thread:
            self._hook.remove()
            self._hook = None

    def close(self) -> None:
        """Leave torch as it was."""
        self._known.clear()
        self.hears = None
        self._unhook()
        self._undo.close()

    def _called(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self.hears is not None and threading.get_ident() == self._thread:
            self.hears(module)
        known = self._known.get(id(module))
        if known is not None:
            self._note(known, module, args)

    def _note(self, known: _Known, module: nn.Module, args: Any) -> None:
        if known.module() is not module or threading.get_ident() != self._thread:
            return
        if torch_names.hidden(module.forward) or torch_names.forced_eager():
            return
        place, frame = "", sys._getframe(2)  # type: str, Any
        while frame is not None:
            code = frame.f_code
            held = frame.f_locals.get("self") if code.co_name == "_call_impl" else None
            inner = held is not None and held is not module and id(held) in self._known
            if inner or code.co_filename.replace("\\", "/").endswith(_ON_PURPOSE):
                return  # a part of another one that is counted, or `torch.compiler.disable` and `set_stance`
            if not place and not places.is_library(code.co_filename):
                name = "" if code.co_name == "<module>" else code.co_name
                place = places.place(code.co_filename, frame.f_lineno, name)
            frame = frame.f_back
        calls, shapes = self._found.setdefault((id(module), place), (known, [0], set()))[1:]
        calls[0] += 1
        if len(shapes) <= SHAPES:
            shapes |= {tuple(one.shape) for one in args[:1] if isinstance(one, torch.Tensor)}

    def table(self) -> pd.DataFrame:
        """Make the table of these calls on one rank; its columns are those of `TYPES`, without rank."""
        rows = [
            (
                *(known.name, f"{known.of.name} at {known.of.place}", known.of.calls, place),
                *(calls[0], len(shapes), known.file, known.line),
            )
            for (_, place), (known, calls, shapes) in self._found.items()
        ]
        return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])


def _being_called() -> list[nn.Module]:
    """The modules whose calls are on the stack, outside of torch's compiled ones."""
    found, frame = [], sys._getframe(1).f_back  # type: list[nn.Module], Any
    while frame is not None:
        held = frame.f_locals.get("self") if frame.f_code.co_name == "_call_impl" else None
        if isinstance(held, nn.Module) and not torch_names.compiled_in_place(held):
            found.append(held)
        frame = frame.f_back
    return found


def _parts(module: Any) -> Iterator[nn.Module]:
    """Of a compiled module and those in it: the ones with most of its parameters, and nothing compiled in them."""
    if module is None:
        return
    whole = sum(p.numel() for p in module.parameters())
    for part in module.modules():
        size = sum(p.numel() for p in part.parameters())
        if size and size >= SHARE * whole and not any(map(torch_names.compiled_in_place, part.modules())):
            yield part


def often(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of calls that are worth a word.

    Args:
        table: With the columns of `TYPES`.
    """
    return table[(table["calls"] >= LEAST) & (table["shapes"] <= SHAPES)]


def bypassed(table: pd.DataFrame) -> list[Finding]:
    """Describe modules of compiled ones that ran in eager, each once.

    Args:
        table: What all ranks noted, with the columns of `TYPES`.
    """
    found = []
    for (name, made), rows in table.groupby(["name", "made"], sort=False):
        told = often(rows[rows["rank"] == rows["rank"].iloc[0]])
        if told.empty:
            continue
        where = ", ".join(f"{row.calls} times at {row.place}" for row in told.itertuples())
        where = where if len(told) > 1 else where.partition(" at ")[0]
        said = f"{name} ran in eager {where}: it is compiled within {made} only, and called around it"
        fix = "where it may be compiled here, too, compile the module itself (module.compile(), before DDP), or call"
        fix += " what torch.compile returned; else nothing"
        found.append(Finding(str(told["place"].iloc[0]), said, "", fix))
    return found


torch_names.hide_from_dynamo(Uncompiled.enter.__code__, Uncompiled.leave.__code__, calls=True)
torch_names.hide_from_dynamo(Uncompiled._note.__code__, Uncompiled._unhook.__code__, calls=True)
torch_names.hide_from_dynamo(_being_called.__code__, calls=True)
