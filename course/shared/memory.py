"""The peak of the memory that a call allocates, as torch's allocators report it to the profiler."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from oddrank.record.profile import collectives_end
from torch.profiler import ProfilerActivity, profile

from labkit import torch_compat

__all__ = ["peak"]


def peak(call: Callable[[], Any]) -> int:
    """Measure the peak of memory during `call()`, in bytes above what was allocated before.

    Memory that the call frees counts as free again, where the thread that calls frees it. What another thread frees, as
    gloo's threads do with the tensors of a collective, is not seen: over gloo this is an upper bound.

    Args:
        call: The function to call, once. Call it before, so that nothing is compiled here.

    Raises:
        ValueError: If a torch profiler is running in this process, `oddrank.record.record()` included.

    >>> import torch
    >>> x = torch.ones(256)
    >>> peak(lambda: (x.neg(), x.neg())), peak(lambda: x.neg().sum() + x.neg().sum())
    (2048, 1032)
    """
    most = now = 0
    for size in _handed(call):
        now += size
        most = max(most, now)
    return most


def _handed(call: Callable[[], Any]) -> list[int]:
    """The bytes of each piece in order: above zero where it was handed out, below zero where it was freed."""
    if torch_compat.profiler_running():
        raise ValueError("a torch profiler is already running in this process, and measuring memory needs it")
    torch_compat.quiet_profiler()
    gc.collect()  # else the collector could free an earlier model during the call, which would be taken off
    # a GPU's allocator reports to the host's side of the profile as well
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        kept = call()  # alive until the profile ends
        collectives_end()
    del kept
    events = [event for event in torch_compat.profiler_events(prof) if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
