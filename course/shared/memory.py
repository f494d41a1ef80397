"""Memory that a call allocates: pieces, bytes and peak, as torch's allocators report them to the profiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from labkit import torch_compat
from labkit.trace.profiler import collectives_end

__all__ = ["Allocated", "allocated", "peak"]


@dataclass(frozen=True)
class Allocated:
    """The number of pieces of memory that a call was handed, and their bytes in all."""

    pieces: int
    bytes: int


def allocated(call: Callable[[], Any]) -> Allocated:
    """Count the pieces and bytes of memory that torch's allocators hand out while `call()` runs, kept or not.

    In eager a Python number in an operation (`x + 1`) is a small tensor of its own. On a GPU the pieces are blocks of
    torch's allocator, of 512 bytes or a multiple (c10/cuda/CUDACachingAllocator.cpp).

    Args:
        call: The function to call, once. Call it before, so that nothing is compiled here.

    Raises:
        ValueError: If a torch profiler is running in this process, `labkit.record()` included.

    >>> import torch
    >>> x = torch.ones(4)
    >>> allocated(lambda: x.neg())
    Allocated(pieces=1, bytes=16)
    """
    handed = [size for size in _handed(call) if size > 0]
    return Allocated(len(handed), sum(handed))


def peak(call: Callable[[], Any]) -> int:
    """Measure the peak of memory during `call()`, in bytes above what was allocated before.

    Memory that the call frees counts as free again, where the thread that calls frees it. What another thread frees, as
    gloo's threads do with the tensors of a collective, is not seen: over gloo this is an upper bound.

    Args:
        call: The function to call, once. Call it before, so that nothing is compiled here.

    Raises:
        ValueError: If a torch profiler is running in this process, `labkit.record()` included.

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
        raise ValueError(
            "a torch profiler is already running in this process, and counting allocations needs it"
        )
    torch_compat.quiet_profiler()
    # a GPU's allocator reports to the host's side of the profile as well
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        kept = call()  # alive until the profile ends
        collectives_end()
    del kept
    events = [event for event in torch_compat.profiler_events(prof) if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
