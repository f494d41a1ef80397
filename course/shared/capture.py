"""What the graphs of a compile say, for probes that look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

from labkit.torch_compat import aot_backend, inductor_code, on_collective, quiet_profiler

__all__ = ["Capture", "aot_backend", "inductor_code", "on_collective", "operations"]


class Capture:
    """A backend that keeps every graph and runs it as it is; with `aot`, those after AOTAutograd as well.

    >>> import torch
    >>> seen = Capture()
    >>> _ = torch.compile(lambda x: x.sin().cos(), backend=seen)(torch.ones(2))
    >>> [n.op for n in seen.dynamo[0].graph.nodes]
    ['placeholder', 'call_method', 'call_method', 'output']
    """

    def __init__(self, aot: bool = False) -> None:
        self.dynamo: list[Any] = []
        self.forward: list[Any] = []
        self.backward: list[Any] = []
        self._aot = aot_backend(self.forward, self.backward) if aot else None

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.dynamo.append(graph)
        return self._aot(graph, inputs) if self._aot else graph.forward


def operations(call: Callable[[], Any]) -> Counter[str]:
    """Count what torch's profiler records of a call, by name.

    >>> import torch
    >>> operations(lambda: torch.ones(4).neg_())["aten::neg_"]
    1
    """
    quiet_profiler()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as prof:  # or torch 2.12 warns
        call()
    return Counter(event.name for event in prof.events())
