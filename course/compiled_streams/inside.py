"""What Dynamo, AOTAutograd and Inductor do with streams besides the graphs: prefix, table, caches, what is saved.

Like the captured graphs, all of this is looked at in a child process that pretends to have an accelerator.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

import torch

from course.compiled_streams.written import write
from course.shared.streams.captured import check_streams, compiled, in_a_child
from course.shared.streams.ops import StreamError
from labkit import torch_compat
from labkit.torch_compat import pretend_streams

__all__ = ["inductor_code", "look", "pretend_streams"]

GRAPH = "__compiled_fn"


def look(fn: Callable[..., Any], *tensors: Any, streams: int = 1) -> tuple[list[str], list[str]]:
    """What runs before the graph of `fn(*tensors, *streams)`: instructions that name something, and the objects.

    Raises StreamError where it does not compile, and what `capture` raises.

    >>> import torch
    >>> def fn(x, side):
    ...     with side:
    ...         return x.sin()
    >>> look(fn, torch.ones(4))[1]
    ['stream 0, the ambient one', 'stream 1']
    """
    check_streams(streams)
    return in_a_child(_look, fn, tensors, streams)


def inductor_code(*functions: Callable[..., Any], streams: int = 1) -> dict[str, str]:
    """What Inductor writes for CUDA of functions of (x, *streams), by their names: written, never run.

    Takes the triton package and no GPU: the compiler is told of an H100, and the tensors are fake. Raises
    UnsupportedTorch without triton.
    """
    check_streams(streams)
    return in_a_child(write, functions, {}, streams, ship=False)


# --- in the child ---


def _look(fn: Callable[..., Any], tensors: tuple, streams: int) -> Any:
    made: list[tuple[Any, Any]] = []
    end = torch_compat.bytecode_hook(lambda before, after: made.append((before, after)))
    try:
        error = compiled(fn, tensors, streams, False)[-1]
    finally:
        end()
    if error:
        return StreamError(f"it does not compile: {error}")
    after = next(after for before, after in made if before.co_name == fn.__name__)
    return _prefix(after), [_object(o) for _, o in sorted(torch_compat.external_objects().items())]


def _prefix(code: Any) -> list[str]:
    """Instructions with a name or a constant in them, up to the call of the graph."""
    found = []
    for one in dis.get_instructions(code):
        if GRAPH in one.argrepr:
            break
        if one.argrepr and not one.opname.startswith(("COPY", "DELETE", "STORE", "SWAP")):
            found.append(f"{one.opname} {one.argrepr}")
    return found


def _object(given: Any) -> str:
    if isinstance(given, torch.Stream):
        return f"stream {given.stream_id}" if given.stream_id else "stream 0, the ambient one"
    return "gone" if given is None else type(given).__name__.lower()
