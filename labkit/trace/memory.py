"""How often a call allocates memory for a tensor: counted by torch's allocator, in eager and in compiled code alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit import torch_compat

__all__ = ["allocations"]


def allocations(call: Callable[[], Any]) -> int:
    """How many pieces of memory torch's allocators hand out while `call()` runs, whether or not they are kept.

    What is compiled in the call allocates as well: call it once before. In eager a Python number in an operation
    (`x + 1`) is a small tensor of its own. Raises ValueError while a torch profiler
    runs, `labkit.record()` included.

    >>> import torch
    >>> x = torch.ones(4)
    >>> allocations(lambda: x.neg_()), allocations(lambda: x.neg())
    (0, 1)
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
    del kept
    events = torch_compat.profiler_events(prof)
    return sum(event.name() == "[memory]" and event.nbytes() > 0 for event in events)
