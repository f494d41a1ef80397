"""`shm`: a c10d backend over shared memory, for CPU tensors on the ranks of one machine.

An `all_reduce` of a few kilobytes between two ranks takes 10 to 20 us, where gloo takes hundreds of us
(`python benchmarks/shm.py`). So the time that a program spends between its collectives becomes visible on a laptop.

- All collectives are here but the deprecated `all_gather_coalesced`; `send` and `recv` go over gloo. Copies work for
  every dtype, reductions for every dtype that torch adds or compares on the CPU. Parts are added in the order of the
  ranks, so all ranks get the same bits.
- A collective has ended when it returns, `async_op=True` or not. So ranks must start the collectives of *all* groups in
  the same order. Where gloo would let two groups overtake each other, both ranks wait here until the deadline.
- When ranks are in different calls, each of them raises `Mismatch`. A wait ends in `Deadline` (the group's timeout)
  or, within a few hundredths of a second, in `PeerGone`. A group that failed once refuses every later call.
- It joins processes of one user on one machine. It is tested on Linux on x86-64. On other processors it uses `fence` in
  `board.py`, which is not tested.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from oddrank.live.introspect import codes
from oddrank.live.stacks import Spin, spin

from labkit import torch_compat
from labkit.shm import board, calls, group, segment, tensors
from labkit.shm.errors import Deadline, Mismatch, PeerGone, PeerLeft, ShmError
from labkit.shm.group import ShmProcessGroup

__all__ = [
    "Deadline",
    "Mismatch",
    "PeerGone",
    "PeerLeft",
    "ShmError",
    "ShmProcessGroup",
    "register",
]


def _turn(variables: Mapping[str, Any]) -> int | None:
    return getattr(getattr(variables.get("self"), "_board", None), "turn", None)


def _waits() -> str:
    waiting = board.Board.waits
    said = waiting.where() if waiting else ""
    return said.removeprefix("in ").partition(", waiting")[0] or "a collective over shared memory"


spin(Spin(os.path.join(os.path.dirname(__file__), ""), _turn, _waits))


def register() -> None:
    """Register `shm` with c10d, so that `dist.init_process_group("shm", ...)` works; calling it again does nothing.

    >>> import torch, torch.distributed as dist
    >>> register()
    >>> dist.init_process_group("shm", store=dist.HashStore(), rank=0, world_size=1)
    >>> x = torch.ones(3)
    >>> dist.all_reduce(x)
    >>> x
    tensor([1., 1., 1.])
    >>> dist.destroy_process_group()
    """
    if "shm" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("shm", _create, devices=["cpu"])
    torch_compat.not_in_flight_record("shm")
    # called from code that Dynamo is at work on, the spin would be traced instead of run
    torch_compat.hide_from_dynamo(*codes(board, calls, group, segment, tensors))


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> ShmProcessGroup:
    return ShmProcessGroup(store, rank, size, timeout)
