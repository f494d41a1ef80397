"""`shm`: a c10d backend for the ranks of one machine, over shared memory, with CPU tensors.

An `all_reduce` of a few kilobytes between two ranks takes 10 to 20 us, of the order of NCCL over NVLink, where gloo
takes hundreds: what a program does between its collectives becomes visible on a laptop.

- Every collective is done here; `send` and `recv` go over gloo. Reductions take any dtype that torch adds or compares
  on CPU, copies take any. All ranks get the same bits, as parts are added in the order of the ranks.
- A collective has ended when it returns, `async_op=True` or not. So ranks must start the collectives of *all* groups in
  one order; where gloo would let two groups overtake each other, here both ranks wait until the deadline.
- Ranks in different calls all raise `Mismatch`; a wait ends in `Deadline` (the group's timeout) or, within a few
  hundredths of a second, in `PeerGone`. A group that failed once refuses every later call.
- One machine, one user. Tested on Linux on x86-64; `order.py` has what other processors need.
"""

from __future__ import annotations

import types
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from labkit import torch_compat
from labkit.ranks.shm import board, collectives, group, join, link, order, peers, reduction, tensors, work
from labkit.ranks.shm.errors import Deadline, Mismatch, OutOfMemory, PeerGone, PeerLeft, ShmError
from labkit.ranks.shm.group import ShmProcessGroup

__all__ = [
    "Deadline",
    "Mismatch",
    "OutOfMemory",
    "PeerGone",
    "PeerLeft",
    "ShmError",
    "ShmProcessGroup",
    "register",
]


def register() -> None:
    """Make `shm` known to c10d, as often as one likes: `dist.init_process_group("shm", ...)` works afterwards.

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
    torch_compat.hide_from_dynamo(*_codes())


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> ShmProcessGroup:
    return ShmProcessGroup(store, rank, size, timeout)


def _codes() -> list[types.CodeType]:
    """The code of every function of this package, nested ones included."""
    modules = (board, collectives, group, join, link, order, peers, reduction, tensors, work)
    found: dict[types.CodeType, None] = {}

    def add(code: types.CodeType) -> None:
        if code not in found and "/ranks/shm/" in code.co_filename.replace("\\", "/"):
            found[code] = None
            for constant in code.co_consts:
                if isinstance(constant, types.CodeType):
                    add(constant)

    for module in modules:
        members = list(vars(module).values())
        members += [m for cls in members if isinstance(cls, type) for m in vars(cls).values()]
        for member in members:
            member = getattr(member, "__wrapped__", member)
            member = member.fget if isinstance(member, property) else member
            for function in (member, getattr(member, "__func__", None)):
                if isinstance(function, types.FunctionType):
                    add(function.__code__)
    return list(found)
