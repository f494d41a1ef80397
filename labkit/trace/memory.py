"""How often a call allocates memory for a tensor: counted by torch's allocator, in eager and in compiled code alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from labkit import torch_compat
from labkit.trace.profiler import collectives_end

__all__ = ["Allocated", "allocated", "allocations", "peak"]


@dataclass(frozen=True)
class Allocated:
    """How many pieces of memory a call was handed, and how many bytes they have together."""

    pieces: int
    bytes: int


def allocations(call: Callable[[], Any]) -> int:
    """How many pieces of memory torch's allocators hand out while `call()` runs; `allocated` has the bytes too.

    Raises what `allocated` raises.

    >>> import torch
    >>> x = torch.ones(4)
    >>> allocations(lambda: x.neg_()), allocations(lambda: x.neg())
    (0, 1)
    """
    return allocated(call).pieces


def allocated(call: Callable[[], Any]) -> Allocated:
    """What torch's allocators hand out while `call()` runs, whether or not it is kept.

    What is compiled in the call allocates as well: call it once before. In eager a Python number in an operation
    (`x + 1`) is a small tensor of its own. On a GPU the pieces are blocks of torch's allocator, which have 512 bytes or
    a multiple (c10/cuda/CUDACachingAllocator.cpp). Raises ValueError while a torch profiler
    runs, `labkit.record()` included.

    >>> import torch
    >>> x = torch.ones(4)
    >>> allocated(lambda: x.neg())
    Allocated(pieces=1, bytes=16)
    """
    handed = [size for size in _handed(call) if size > 0]
    return Allocated(len(handed), sum(handed))


def peak(call: Callable[[], Any]) -> int:
    """How many bytes more than before torch's allocators had handed out at the worst moment of `call()`.

    What is freed in the call makes room; what was there before does not count. Raises what `allocated` raises.

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
    """The bytes of every piece that was handed out, and below zero of every one that came back, in order."""
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
