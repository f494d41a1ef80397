"""Models and functions with code of their own, so that Dynamo keeps the caches of variants apart."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["own", "with_own_code"]


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
