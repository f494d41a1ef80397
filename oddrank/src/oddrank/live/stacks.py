"""What a stack that is shown to a person leaves out: modules mark themselves, by one call as they are imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from oddrank import places

__all__ = [
    "Spin",
    "bottom",
    "hide",
    "is_bottom",
    "is_hidden",
    "is_library",
    "is_ours",
    "own_library",
    "place",
    "spin",
]

_hidden: set[str] = set()
_bottoms: set[str] = set()
_ours: set[str] = set()
_spin: list[Spin] = []


class Spin(NamedTuple):
    """A package whose collectives wait by turning in a loop of Python: its frames move, and are no progress.

    Attributes:
        folder: Of its files.
        turn: Gives the number of the collective from the variables of one of its frames; None where it has none.
        waits: Says in words what this rank waits in; '' where it does not know.
    """

    folder: str
    turn: Callable[[Mapping[str, Any]], int | None]
    waits: Callable[[], str]


def hide(file: str) -> None:
    """Leave the frames of a file out of every stack; the file calls it with its own `__file__`."""
    _hidden.add(file)


def bottom(file: str) -> None:
    """Leave out the frames of a file, and all that lies outside of them: it calls the program."""
    _hidden.add(file)
    _bottoms.add(file)


def own_library(folder: str) -> None:
    """Count what lies in a folder as library code in stacks; its package calls it."""
    _ours.add(os.path.join(folder, ""))


def spin(spins: Spin) -> None:
    """Name a package that waits in Python; it calls this as it is imported."""
    _spin[:] = [spins]


def spinning(file: str) -> Spin | None:
    """The package that waits in Python, where a file is one of its."""
    return next((one for one in _spin if file.startswith(one.folder)), None)


def is_hidden(file: str) -> bool:
    """Whether the frames of a file are left out."""
    return file in _hidden


def is_bottom(file: str) -> bool:
    """Whether all that lies outside of a file's frames is left out, too."""
    return file in _bottoms


def is_ours(file: str) -> bool:
    """Whether a file belongs to what watches the program, and not to the program."""
    return file.startswith(tuple(_ours))


def is_library(file: str) -> bool:
    """Whether a file is no code of the reader's: installed code, Python itself, or what watches the program."""
    return is_ours(file) or places.is_library(file)


def place(file: str, line: int, name: str) -> str:
    """Return `In [5]:3 (name)`; code outside functions has no name.

    Args:
        file: The file of the code.
        line: The line.
        name: The function.
    """
    return places.place(file, line, "" if name in ("<module>", "<cell line: 1>") else name)


own_library(os.path.dirname(os.path.dirname(__file__)))
