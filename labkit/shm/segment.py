"""The memory that the ranks of a group share: how they come to it, and the slots in it for their tensors.

It holds a control page for each rank, then two slots for each rank, which are used in turn.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.shm.errors import Deadline, ShmError

PAGE = 4096
# longer tensors go through in pieces; of 64 KiB to 4 MiB the fastest where it was tried
SLOT_BYTES = 256 * 1024
NAME = "labkit-shm-"  # a token begins with it
TICKET = "segment"  # the store's key under which rank 0 says where its memory is, or why there is none

Slots = tuple[list[Tensor], list[Tensor]]  # of even and of odd turns, by rank


@contextmanager
def share(store: Any, rank: int, size: int, timeout: timedelta) -> Iterator[tuple[mmap.mmap, str]]:
    """Map one memory of zeros into all ranks of a group; others can come to it until rank 0's block ends.

    It never has a name in a file system, so that even SIGKILL leaves no file.

    Args:
        store: The rendezvous store of the group.
        rank: This rank; rank 0 makes the memory.
        size: Number of ranks.
        timeout: How long the other ranks wait for rank 0.

    Yields:
        The memory, and a token that no other group has.

    Raises:
        ShmError: If it cannot be made or opened.
        Deadline: If rank 0 does not make it in time.
    """
    total = size * (PAGE + 2 * SLOT_BYTES)
    if rank:
        fd, token = _open(store, rank, timeout)
        try:
            memory = mmap.mmap(fd, total)
        finally:
            os.close(fd)
        yield memory, token
        return
    token = f"{NAME}{secrets.token_hex(8)}"
    fd = os.memfd_create(token, os.MFD_CLOEXEC)
    try:
        try:
            os.posix_fallocate(fd, 0, total)  # without room it fails here: written to, it is a SIGBUS
        except OSError as error:
            room = f"{total / 2**20:.1f} MiB of shared memory for {size} ranks"
            said = f"rank 0 has no {room}: {error.strerror}"
            store.set(TICKET, said)
            raise ShmError(said) from error
        store.set(TICKET, f"{token} /proc/{os.getpid()}/fd/{fd}")
        yield mmap.mmap(fd, total), token
        store.delete_key(TICKET)  # the same store may carry another group of this name later
    finally:
        os.close(fd)


def _open(store: Any, rank: int, timeout: timedelta) -> tuple[int, str]:
    try:
        store.wait([TICKET], timeout)
    except dist.DistStoreError:
        waited = timeout.total_seconds()
        raise Deadline(f"rank {rank} waited {waited:.1f} s for rank 0 to make the group") from None
    ticket = store.get(TICKET).decode()
    if not ticket.startswith(NAME):
        raise ShmError(ticket)
    token, path = ticket.split()
    try:
        # another machine may have something else under the same path
        if token not in os.readlink(path):
            raise OSError("it is another file here")
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), token
    except OSError as error:
        raise ShmError(
            f"rank {rank} cannot open the memory of rank 0 at {path}: {error.strerror or error}; "
            "shm joins ranks of one machine, one user and one pid namespace: use gloo"
        ) from error


def slots(memory: mmap.mmap, size: int) -> Callable[[torch.dtype, tuple[int, ...]], Slots]:
    """Return a function that gives the front of every slot as a tensor of a dtype and a shape."""
    whole = torch.frombuffer(memory, dtype=torch.uint8, offset=size * PAGE).view(2, size, SLOT_BYTES)

    @lru_cache(maxsize=4096)
    def of(dtype: torch.dtype, shape: tuple[int, ...]) -> Slots:
        nbytes = math.prod(shape) * dtype.itemsize
        with torch.inference_mode(False):  # a slot must stay writable outside inference mode too
            even, odd = ([slot[:nbytes].view(dtype).view(shape) for slot in turn] for turn in whole)
        return even, odd

    return of
