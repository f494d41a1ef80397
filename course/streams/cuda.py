"""Runs torch code on a real GPU and returns what ran when, on which stream, as the profiler saw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from oddrank.record.profile import Profile

from course.shared.streams.ops import StreamError
from course.shared.streams.timeline import SPANS, Timeline

__all__ = ["on_gpu"]


def on_gpu(fn: Callable[..., Any], *args: Any) -> Timeline:
    """Run a function on the current GPU and return its kernels and copies, in ms, a lane for each CUDA stream.

    The function runs once without a profiler first, because the first launch of a kernel loads it.

    Args:
        fn: the function.
        args: what it is called with; tensors on the GPU.

    Raises:
        StreamError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise StreamError("there is no CUDA device here: capture the function, and simulate it instead")
    fn(*args)
    torch.cuda.synchronize()
    profile = Profile()
    profile.start()
    fn(*args)
    torch.cuda.synchronize()
    events = sorted((e for e in profile.stop() if e.stream >= 0), key=lambda e: e.start)
    zero = events[0].start if events else 0
    rows = []
    for event in events:
        start, end, low = (event.start - zero) / 1e6, (event.end - zero) / 1e6, event.name.lower()
        kind = "collective" if "nccl" in low else "copy" if low.startswith("memcpy") else "compute"
        rows.append((0, f"stream {event.stream}", event.name, kind, start, end))
    spans = pd.DataFrame(rows, columns=list(SPANS))
    return Timeline(fn.__name__.replace("_", " "), "cuda · 1 gpu", "ms", spans)
