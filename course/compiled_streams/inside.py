"""What Inductor writes for streams, looked at in a child process that pretends to have an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.compiled_streams.written import write
from course.shared.streams.captured import check_streams, in_a_child
from labkit.torch_compat import pretend_streams

__all__ = ["inductor_code", "pretend_streams"]


def inductor_code(*functions: Callable[..., Any], streams: int = 1) -> dict[str, str]:
    """What Inductor writes for CUDA of functions of (x, *streams), by their names: written, never run.

    Takes the triton package and no GPU: the compiler is told of an H100, and the tensors are fake. Raises
    UnsupportedTorch without triton.
    """
    check_streams(streams)
    return in_a_child(write, functions, {}, streams, ship=False)
