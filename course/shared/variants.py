"""The variants of the model under study, each with code of its own, so that Dynamo keeps their caches apart."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Variant:
    """One way to run the model: its letter, what it is, whether it is compiled, and which all-reduce it calls."""

    letter: str
    name: str
    compiled: bool
    reduce: str

    @property
    def title(self) -> str:
        """The letter and the name, as figures show it."""
        return f"{self.letter} {self.name}"


VARIANTS = {
    v.letter: v
    for v in (
        Variant("A", "eager, in place", False, "inplace"),
        Variant("B", "compiled, disabled", True, "disabled"),
        Variant("C", "compiled, functional", True, "functional"),
        Variant("D", "eager, functional", False, "functional"),
        Variant("E", "compiled, in place", True, "inplace"),
    )
}


def title(variant: str) -> str:
    """The letter of a variant with its name; what is no letter of theirs stays as it is.

    >>> title("B"), title("ours")
    ('B compiled, disabled', 'ours')
    """
    return VARIANTS[variant].title if variant in VARIANTS else variant


def choose(letters: str | list[str]) -> list[Variant]:
    """The variants with these letters, in the order given.

    Raises ValueError for an unknown letter, one that is given twice, or none at all.

    >>> [v.name for v in choose("BC")]
    ['compiled, disabled', 'compiled, functional']
    """
    chosen = []
    for letter in letters:
        if letter not in VARIANTS:
            raise ValueError(f"unknown variant {letter!r}: there are {', '.join(VARIANTS)}")
        if VARIANTS[letter] in chosen:
            raise ValueError(f"variant {letter!r} is given twice")
        chosen.append(VARIANTS[letter])
    if not chosen:
        raise ValueError(f"no variant was chosen: give at least one of {', '.join(VARIANTS)}")
    return chosen


def with_own_code(model: torch.nn.Module) -> torch.nn.Module:
    """Give every module class of `model` outside torch a private copy of its forward's code, and return the model.

    Dynamo keeps what it compiled, and that it gave a frame up, on the *code object*. Two variants that share one
    would share that fate: after the loop of variant B's Model.forward was skipped, variant C's would be skipped
    as well, and time as 40 regions instead of one. `torch._dynamo.reset()` between variants avoids it too, but
    then nothing is left compiled to interleave with. (torch/_dynamo/convert_frame.py, cache on code objects.)
    """
    copies: dict[type, type] = {}
    for module in model.modules():
        kind = type(module)
        if kind.__module__.partition(".")[0] == "torch":
            continue
        if kind not in copies:
            body = {
                "forward": own(kind.forward),
                "__module__": kind.__module__,
                "__qualname__": kind.__qualname__,
            }
            copies[kind] = type(kind.__name__, (kind,), body)
        module.__class__ = copies[kind]
    return model


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function whose code object is its own."""
    if not isinstance(function, types.FunctionType):
        return function
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy
