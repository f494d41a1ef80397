"""This process in the place of ranks: programs without collectives need no more."""

from __future__ import annotations

import pytest


class InTurn:
    """Ranks that are this process, one after the other."""

    def __init__(self, patch: pytest.MonkeyPatch, world_size: int) -> None:
        self.patch, self.world_size = patch, world_size

    def run(self, fn, *args):
        """Call a function as each rank; its results by rank."""
        from oddrank.live import here

        found = {}
        for rank in range(self.world_size):
            me = here.Here(rank, self.world_size, "cpu", "gloo", "gloo · cpu")
            self.patch.setattr(here, "_here", me)
            found[rank] = fn(*args)
        return found


@pytest.fixture(scope="module")
def ranks():
    """Two ranks that are this process in turn."""
    with pytest.MonkeyPatch.context() as patch:
        yield InTurn(patch, 2)


@pytest.fixture(scope="module")
def alone():
    """One rank that is this process, with a process group over gloo."""
    import torch.distributed as dist

    with pytest.MonkeyPatch.context() as patch:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield InTurn(patch, 1)
        dist.destroy_process_group()
