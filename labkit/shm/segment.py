"""The memory that the ranks of a group share: its layout, and how it is made so that no name of it stays.

It holds a control page for each rank, then two slots for each rank, which are used in turn.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.shm.errors import OutOfMemory, ShmError

PAGE = 4096
# longer tensors go through in pieces; of 64 KiB to 4 MiB the fastest where it was tried
SLOT_BYTES = 256 * 1024
MAX_RANKS = 64  # the tables of all_to_all in a control page have room for no more


@dataclass(frozen=True)
class Layout:
    """The offsets, in bytes, in the segment of `size` ranks."""

    size: int
    slot_bytes: int = SLOT_BYTES

    @property
    def total(self) -> int:
        """Size of the segment, in bytes."""
        return self.size * (PAGE + 2 * self.slot_bytes)

    def slot(self, rank: int, parity: int) -> int:
        """Return the offset of one of a rank's two slots, 0 or 1, in bytes."""
        return self.size * PAGE + (2 * rank + parity) * self.slot_bytes


@dataclass(frozen=True)
class Ticket:
    """What the other ranks need to open the segment. Rank 0 sends it through the store."""

    path: str
    machine: str
    pid: int
    token: str  # names this very group: a store may outlive several groups of one name

    def dumps(self) -> str:
        """Return it as text."""
        return json.dumps(vars(self))

    @classmethod
    def loads(cls, text: str | bytes) -> Ticket:
        """Return the ticket that `dumps` has written."""
        return cls(**json.loads(text))


def machine() -> str:
    """Return a name of this machine that differs between machines, and between two boots of one."""
    try:
        return platform.node() + " " + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _memfd() -> tuple[int, str, bool]:
    if not Path("/proc/self/fd").is_dir():
        raise OSError("no /proc to hand the memory over")
    fd = os.memfd_create("labkit-shm", os.MFD_CLOEXEC)
    return fd, f"/proc/{os.getpid()}/fd/{fd}", False


def _file(folder: str) -> tuple[int, str, bool]:
    path = os.path.join(folder, f"labkit-shm-{os.getpid()}-{secrets.token_hex(6)}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path, True


def _reserve(fd: int, nbytes: int) -> None:
    # reserving now turns a full file system into an error here; written to later it would be a SIGBUS
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, nbytes)
    else:
        os.pwrite(fd, bytes(nbytes), 0)


PLACES: tuple[tuple[str, Any], ...] = (
    ("memfd", _memfd),  # never has a name, so that even SIGKILL leaves no file
    ("/dev/shm", lambda: _file("/dev/shm")),
    (tempfile.gettempdir(), lambda: _file(tempfile.gettempdir())),
)


@contextmanager
def create(layout: Layout) -> Iterator[tuple[mmap.mmap, Ticket]]:
    """Make a segment of zeros, which other processes can open until the block ends.

    Args:
        layout: Its layout.

    Yields:
        The mapped memory, and the ticket with which others open it.

    Raises:
        OutOfMemory: If no place has room, with each place that was tried.
    """
    fd, path, named = _open(layout)
    try:
        ticket = Ticket(path, machine(), os.getpid(), secrets.token_hex(8))
        yield mmap.mmap(fd, layout.total), ticket
    finally:
        os.close(fd)
        if named:
            os.unlink(path)


def _open(layout: Layout) -> tuple[int, str, bool]:
    tried = []
    for place, make in PLACES:
        try:
            fd, path, named = make()
        except (OSError, AttributeError) as error:
            tried.append(f"{place}: {error}")
            continue
        try:
            _reserve(fd, layout.total)
            return fd, path, named
        except BaseException as error:
            os.close(fd)
            if named:
                os.unlink(path)
            if not isinstance(error, OSError):
                raise
            tried.append(f"{place}: {error.strerror}")
    mib = layout.total / 2**20
    raise OutOfMemory(f"no {mib:.1f} MiB of shared memory for {layout.size} ranks ({'; '.join(tried)})")


def attach(ticket: Ticket, layout: Layout) -> mmap.mmap:
    """Map the segment that rank 0 made.

    Args:
        ticket: What rank 0 has sent.
        layout: The layout of the segment.

    Raises:
        ShmError: If it is on another machine, or cannot be opened.
    """
    if ticket.machine != machine():
        there, here = ticket.machine.split()[0], platform.node()
        raise ShmError(
            f"shm joins ranks of one machine: rank 0 runs on {there}, this rank on {here}; use gloo"
        )
    try:
        fd = os.open(ticket.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ShmError(
            f"cannot open the memory of rank 0 (pid {ticket.pid}) at {ticket.path}: {error.strerror}; "
            "shm needs ranks of one user in one pid namespace"
        ) from error
    try:
        return mmap.mmap(fd, layout.total)
    finally:
        os.close(fd)
