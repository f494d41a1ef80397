"""A simulated link for FSDP2's all-gathers, whose messages need time and no processor."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

__all__ = ["Link", "over"]


class Link:
    """All-gathers for FSDP2's `set_custom_all_gather`. SIMULATED: each one is followed by a sleep.

    A thread of its own gathers and sleeps, in the order of the launches. The thread that trains goes on until it waits
    for the result. The gathers have a group of their own, so the two threads never send in one group.

    Args:
        seconds: the sleep after each gather.
        wait_at_launch: whether the launch itself waits for the result.
    """

    def __init__(self, seconds: float, wait_at_launch: bool = False) -> None:
        self.seconds, self.wait_at_launch = seconds, wait_at_launch
        self.group: Any = dist.new_group()
        self.queue = ThreadPoolExecutor(1)

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The buffer that a gather fills."""
        return torch.empty(size, dtype=dtype, device=device)

    def _travel(self, whole: Tensor, mine: Tensor) -> None:
        dist.all_gather(list(whole.chunk(self.group.size())), mine, self.group)
        time.sleep(self.seconds)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Launch a gather; the result is there after `wait()` of what is returned."""
        sent = self.queue.submit(self._travel, output_tensor, input_tensor)
        if self.wait_at_launch:
            sent.result()

        class Sent(dist.Work):
            def wait(self, timeout: Any = None) -> bool:
                sent.result()
                return True

        return Sent()


def over(model: nn.Module, link: Link) -> nn.Module:
    """Let all units of a model gather over a link."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(link)  # type: ignore[arg-type]
    return model
