"""What torch.compile made in a program: where, of what, and how often it was called."""

from __future__ import annotations

import linecache
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch

from oddrank import places
from oddrank.look.decorated import wrappers
from oddrank.record import Compile

__all__ = ["TYPES", "Made", "asked", "is_torchs", "line_of_program", "line_of_stack", "name_forwards"]

TYPES = {"rank": "int64", "place": "str", "name": "str", "calls": "int64", "recorded": "int64"}
TYPES |= {"inside": "bool", "own": "bool", "ddp": "bool", "shared": "bool", "dynamic": "str"}
# lines that gave torch.compile a module: what it returns has other names of parameters
renaming: dict[str, None] = {}
_TORCH = os.path.dirname(torch.__file__) + os.sep
_INTERPRETER = os.path.join("torch", "fx", "interpreter.py")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
_NODE = re.compile(r"\s*(\w+)(?::[^=]*)? = ")  # a line of a graph's code


@dataclass
class Made:
    """A callable that torch.compile made: where, of what, and how often it was called, in all and in recorded steps."""

    place: str
    name: str
    own: bool  # whether some code in it is not torch's
    ddp: bool
    shared: bool  # whether torch compiles one function for all such objects, which calls them
    dynamic: str
    calls: int = 0
    recorded: int = 0
    module: Callable[[], Any] = field(default=lambda: None, repr=False)
    whole: bool = False  # whether the module itself is called, not one of its methods
    inside: bool = False  # whether it was found in another one that was called: later the modules may be gone

    @classmethod
    def of(cls, model: Any, options: dict[str, Any]) -> Made:
        """Describe what torch.compile is given, at the line of the program that calls it."""
        place = line_of_program()
        dynamic = str(options.get("dynamic"))
        module, method = getattr(model, "__self__", model), getattr(model, "__func__", None)
        # `module.compile()` compiles a method that nn.Module has for the call of every module
        in_place = method is not None and method in vars(torch.nn.Module).values()
        held: dict[str, Any] = {"module": weakref.ref(module)} if isinstance(module, torch.nn.Module) else {}
        if not held or not (module is model or in_place):
            name = getattr(model, "__qualname__", type(model).__name__).rpartition("<locals>.")[2]
            own = _not_torchs(model)
            shared = method is None and (not own or not hasattr(model, "__code__"))
            return cls(place, name, own, False, shared, dynamic, **held)
        if module is model:
            renaming[place] = None
        parts = list(module.modules())
        own = any(_not_torchs(type(part).forward) for part in parts)
        ddp = any(isinstance(part, torch.nn.parallel.DistributedDataParallel) for part in parts)
        name = f"{type(module).__qualname__.rpartition('<locals>.')[2]}.forward"
        shared = not in_place and not _not_torchs(type(module).forward)
        return cls(place, name, own, ddp, shared, dynamic, **held, whole=True)


def line_of_program() -> str:
    """Return the innermost line of the program on the stack; '' where all of it is library code.

    A graph that runs node by node has the line of its node.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if stack := _stack_of_node(frame):
            if place := line_of_stack(stack):
                return place
        elif not places.is_library(file):
            return places.place(file, frame.f_lineno)
        frame = frame.f_back
    return ""


def line_of_stack(stack: str) -> str:
    """Return the innermost line of the program in a stack as Python prints it; '' where all of it is library code.

    >>> line_of_stack('  File "/home/ada/train.py", line 7, in forward\\n    y = f(x)')
    'train.py:7'
    """
    own = [at for at in _FRAME.finditer(stack) if not places.is_library(at["file"])]
    return places.place(own[-1]["file"], int(own[-1]["line"])) if own else ""


def _stack_of_node(frame: Any) -> str:
    """The program's stack of the node that a frame runs, in the code of a graph or in an interpreter of its nodes."""
    file, held = frame.f_code.co_filename, frame.f_locals
    if file.endswith(_INTERPRETER) and frame.f_code.co_name == "run_node":
        return getattr(held.get("n"), "stack_trace", None) or ""
    if not file.startswith("<eval_with_key>"):
        return ""
    named = _NODE.match(linecache.getline(file, frame.f_lineno))
    graph = getattr(held.get("self"), "graph", None)
    nodes = graph.nodes if graph is not None and named else ()
    return next((node.stack_trace or "" for node in nodes if named and node.name == named[1]), "")


def _not_torchs(fn: Any) -> bool:
    code = getattr(fn, "__code__", None)
    return code is None or not is_torchs(code.co_filename)


def is_torchs(file: str) -> bool:
    """Say whether a file is torch's own."""
    return file.startswith(_TORCH)


def name_forwards(rows: Iterable[Compile], made: list[Made], known: dict[tuple[str, int], set[str]]) -> None:
    """Name compiles of what decorates a module's `forward` as that forward, where one class alone has it.

    Args:
        rows: Whose `func` is, for instance, 'wrapper'; one that has an owner keeps it.
        made: What torch.compile made. Classes are those of its modules, the same on ranks that compile the same.
        known: By file and line of the code, the names that were found; kept, because modules may be gone later.
    """
    modules = [module for one in made if (module := one.module()) is not None]
    for kind in {type(part) for module in modules for part in module.modules()}:
        name = f"{kind.__qualname__.rpartition('<locals>.')[2]}.forward"
        for code in wrappers(kind):
            known.setdefault((code.co_filename, code.co_firstlineno), set()).add(name)
    for row in rows:
        if not row.owner and len(named := known.get((row.file, row.line), set())) == 1:
            (row.owner,) = named


def asked(made: list[Made]) -> pd.DataFrame:
    """Make the table of what torch.compile made on one rank; its columns are those of `TYPES`, without rank.

    `inside` says that it is a part of another one that was called, whose graphs hold it.
    """
    rows = []
    for one in made:
        module = one.module()
        others = [other.module() for other in made if other is not one and other.calls and other.whole]
        held = module is not None and any(module in other.modules() for other in others if other is not None)
        one.inside = one.inside or (one.whole and held)
        about = (one.place, one.name, one.calls, one.recorded, one.inside)
        rows.append((*about, one.own, one.ddp, one.shared, one.dynamic))
    return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])
