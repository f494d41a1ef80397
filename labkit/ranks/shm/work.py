"""The handle that c10d gives for a collective: here it has always ended by the time there is a handle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future


class Done(dist.Work):
    """A collective that is over; `get_future()` holds its tensors."""

    def __init__(self, tensors: list[torch.Tensor]):
        super().__init__()
        self._tensors = tensors
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Future[Any]:
        if self._future is None:
            self._future = Future()
            self._future.set_result(self._tensors)
        return self._future
