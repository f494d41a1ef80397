"""How often a call allocates memory for a tensor: counted by torch's allocator, in eager and in compiled code alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit import torch_compat
from labkit.trace.profiler import collectives_end

__all__ = ["Allocated", "allocated", "allocations"]


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
    (`x + 1`) is a small tensor of its own. Raises ValueError while a torch profiler
    runs, `labkit.record()` included.

    >>> import torch
    >>> x = torch.ones(4)
    >>> allocated(lambda: x.neg())
    Allocated(pieces=1, bytes=16)
    """
    from torch.profiler import ProfilerActivity, profile

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
    events = torch_compat.profiler_events(prof)
    handed = [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0]
    return Allocated(len(handed), sum(handed))
