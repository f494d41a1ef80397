"""`inspect(fn, *args)`: call a function once, and get every frame that was compiled for it."""

from __future__ import annotations

import contextlib
import inspect as python
from typing import Any

import torch

from oddrank import torch_names
from oddrank.record.process import record
from oddrank.stages.frames import Frames

__all__ = ["inspect"]


def inspect(fn: Any, *args: Any, fresh: bool = False, **kwargs: Any) -> Frames:
    """Call `fn(*args, **kwargs)` once under `record(stages=True)`, and return the frames that were compiled for it.

    Args:
        fn: A function, method, lambda or module. One that is not compiled yet is compiled here, with the defaults of
            `torch.compile`.
        args: Its arguments.
        fresh: First forget everything that was compiled in this process (as `torch._dynamo.explain` always does), and
            use no cache, so that every stage is there. Code compiled before compiles again at its next call.
        kwargs: Its keyword arguments.

    Returns:
        The frames. One that was compiled earlier has the stages that are still known, and says which are missing.

    Raises:
        ValueError: For something that cannot be compiled, and inside another record. An exception of `fn` passes.

    >>> import torch
    >>> def twice(x):
    ...     return x.sin() * 2
    >>> inspect(torch.compile(twice, backend="eager"), torch.ones(4), fresh=True)[0].nodes()[1].short
    'sin'
    """
    run = _compiled(fn)
    with contextlib.ExitStack() as stack:
        if fresh:
            torch_names.dynamo_reset()
            stack.enter_context(torch_names.no_compile_caches())
        with record(stages=True) as rec:
            run(*args, **kwargs)
    frames = Frames(rec.frames, rec.notes)
    if not frames.graphs:
        frames.notes.append(_why_nothing(fn, frames))
    return frames


def _compiled(fn: Any) -> Any:
    if python.isclass(fn):
        raise ValueError(
            f"inspect takes a function or a module to call, and {fn.__name__} is a class: make one of it"
        )
    if not callable(fn):
        raise ValueError(f"inspect takes a function or a module to call, and got a {type(fn).__name__}")
    if python.isgeneratorfunction(fn) or python.iscoroutinefunction(fn):
        raise ValueError(
            f"{fn.__name__} is a generator or a coroutine: its call runs nothing that could be compiled"
        )
    return fn if torch_names.uncompiled(fn) is not fn or torch_names.hidden(fn) else torch.compile(fn)


def _why_nothing(fn: Any, frames: Frames) -> str:
    """One sentence for a call that compiled no graph."""
    name = getattr(fn, "__name__", type(fn).__name__)
    if torch_names.hidden(fn):
        return f"{name} is hidden from the compiler (torch.compiler.disable), so nothing was compiled"
    for frame in frames:
        if frame.compile.outcome == "gave-up" and frame.graph_break:
            return (
                f"{name} ran as plain Python: Dynamo gave {frame.compile.name} up ({frame.graph_break.name})"
            )
    if python.isbuiltin(fn):
        return (
            f"{name} is a builtin: it has no bytecode for Dynamo to read; call it in a function of your own"
        )
    return f"no graph: nothing that {name} did was an operation on tensors that Dynamo could capture"
