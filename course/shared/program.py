"""The program that an experiment runs: the lesson's own, or a reader's edited copy of it."""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import json
import linecache
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit import lessons
from oddrank import places

__all__ = ["Program", "choose"]

MISSING = object()


@dataclass(frozen=True)
class Program:
    """The program that an experiment runs.

    Attributes:
        code: what has the program's names as attributes; it travels to the ranks.
        digest: twelve hexadecimal digits of a hash over the source of every name of the program.
        edited: the names whose source is not the lesson's.
    """

    code: Any
    digest: str
    edited: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """The line that a report shows where the program is not the lesson's own.

        >>> Program(None, "", ("Block", "Model")).notes
        ['program: Block, Model edited']
        """
        return [f"program: {', '.join(self.edited)} edited"] if self.edited else []


def choose(topic: str, given: Any, needed: Iterable[str]) -> Program:
    """The program for an experiment: the lesson's own, or the reader's copy of it.

    Args:
        topic: the topic whose lesson has the program.
        given: None for the lesson's own; or a module, or a mapping such as `globals()` of a notebook.
        needed: the names that the experiment uses. What these use in turn is part of the program as well.

    Raises:
        ValueError: a name is missing in `given`, or something in it uses another object than the one of that name, as
            when a class was run again and the class that uses it was not.

    >>> choose("cliff", None, ["Model"]).edited
    ()
    """
    own = lessons.program(topic)
    names = own.__program__
    texts = {name: _text(getattr(own, name)) for name in names}
    if given is None or given is own:
        return Program(own, _digest(texts))
    space = given if isinstance(given, Mapping) else vars(given)
    taken: dict[str, Any] = {}
    waiting = list(needed)
    while waiting:
        name = waiting.pop(0)
        if name in taken:
            continue
        if name not in space:
            raise ValueError(
                f"the program has no {name!r}: run the cell that defines it, or leave program=None"
            )
        taken[name] = space[name]
        if (
            space[name] is getattr(own, name, None)
            and getattr(space[name], "__module__", own.__name__) != own.__name__
        ):
            continue  # another lesson's
        for user, used, value in _uses(name, space[name]):
            own_modules = (getattr(space[name], "__module__", None), space.get("__name__"))
            if used not in names and not (
                callable(value) and getattr(value, "__module__", "") in own_modules
            ):
                continue
            if value is MISSING:
                raise ValueError(
                    f"{user} of the program uses {used!r}, which is not defined: run the cell that defines it"
                )
            if space.get(used) is not value:
                raise ValueError(
                    f"{user} of the program uses another {used} than the one given: run the cells of both again"
                )
            waiting.append(used)
    theirs = texts | {name: _text(value) for name, value in taken.items()}
    changed = tuple(name for name in theirs if theirs[name] != texts.get(name))
    return Program(types.SimpleNamespace(**taken), _digest(theirs), changed)


def _digest(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(texts.items())).encode()).hexdigest()[:12]


def _functions(value: Any) -> list[types.FunctionType]:
    """A function without its wrappers; all that the body of a class defines; the nameless ones in a table."""
    if isinstance(value, type):
        inside = [getattr(v, "__func__", getattr(v, "fget", v)) for v in vars(value).values()]
    else:
        leaves = [one for one in _leaves(value) if one is value or not _is_named(one)]
        inside = [inspect.unwrap(one) if callable(one) else one for one in leaves]
    # what a decorator has generated, such as a dataclass's __init__, is none of the program's
    return [f for f in inside if isinstance(f, types.FunctionType) and _is_readable(f.__code__.co_filename)]


def _leaves(value: Any) -> Iterator[Any]:
    """What a table of functions holds, at any depth; another value is its own only leaf."""
    if isinstance(value, functools.partial):
        value = (value.func, value.args, value.keywords)
    if isinstance(value, dict):
        value = (*value, *value.values())
    if not isinstance(value, tuple | list):
        yield value
        return
    for one in value:
        yield from _leaves(one)


def _is_named(value: Any) -> bool:
    """Whether a value is a function or a class that stands at the top of a module, which is none of torch's."""
    name = getattr(value, "__qualname__", "")
    return (
        bool(name) and name == value.__name__ != "<lambda>" and not str(value.__module__).startswith("torch")
    )


def _is_readable(filename: str) -> bool:
    return not places.is_library(filename) and bool(linecache.getlines(filename))


def _text(value: Any) -> str:
    """The source of a function or a class; of another value, what it prints as, and the source of its lambdas.

    `inspect.getsource` does not know the classes of a notebook, nor those that `load` made: it looks for them in the
    file of their module. Their methods name the cell.
    """
    whole = [
        _definition(f.__code__, value.__name__ if isinstance(value, type) else None)
        for f in _functions(value)
    ]
    parts = list(dict.fromkeys(part for part in whole if part))
    if isinstance(value, types.ModuleType):  # another lesson's program
        parts = [_text(getattr(value, name)) for name in getattr(value, "__program__", ())]
    elif isinstance(value, type) and not parts:  # a dataclass has no code of its own
        parts = [_plain((value, {name: one for name, one in vars(value).items() if name[0] != "_"}))]
    elif not parts or not callable(value) or isinstance(value, functools.partial):
        parts.insert(0, _plain(value))
    return "\n".join(parts)


def _plain(value: Any) -> str:
    """What a value prints as, the same in a notebook and in a module: without addresses and names of modules."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_plain(key)}: {_plain(one)}' for key, one in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_plain, value))})"
    if isinstance(value, functools.partial):
        return f"partial{_plain((value.func, value.args, value.keywords))}"
    if name := getattr(value, "__qualname__", ""):
        held = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        return name + "".join(f" {one!r}" for one in held if isinstance(one, str | int | float))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _definition(code: types.CodeType, kind: str | None) -> str:
    """The text around a code object: of the class of this name, else of the function itself, with its decorators."""
    lines = linecache.getlines(code.co_filename)
    found = []
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or first):
                found.append((node.name, isinstance(node, ast.ClassDef), first, node.end_lineno))
    of_class = [place for place in found if place[1] and place[0] == kind]
    own = [place for place in found if not place[1] and place[2] == code.co_firstlineno]
    for _, _, first, last in of_class or own:
        return textwrap.dedent("".join(lines[first - 1 : last])).rstrip()
    return lines[code.co_firstlineno - 1].strip()  # a lambda


def _uses(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """The names that a function, a class or a table uses: who, the name, and the object that it finds there."""
    for base in value.__bases__ if isinstance(value, type) else ():
        yield name, base.__name__, base
    functions = _functions(value)
    held = [value, *((one.__defaults__, one.__kwdefaults__) for one in functions)]
    yield from ((name, one.__name__, one) for one in _leaves(held) if one is not value and _is_named(one))
    for function in functions:
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
            for step in dis.get_instructions(code):
                if step.opname == "LOAD_GLOBAL":
                    yield name, step.argval, function.__globals__.get(step.argval, MISSING)
