"""Whether the process of a peer still runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HAS_PROC = Path("/proc/self/stat").exists()


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none, or only its zombie.

    Without /proc it is 0 for any process that can be signalled: a zombie then counts as alive.
    """
    if not HAS_PROC:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()  # the name before it may hold anything
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X", b"x") else int(fields[19])


@dataclass(frozen=True)
class Peer:
    """A process as it wrote itself into the segment; a pid that was given out again is not the same process."""

    pid: int
    start: int

    @classmethod
    def me(cls) -> Peer:
        return cls(os.getpid(), started(os.getpid()) or 0)

    def alive(self) -> bool:
        return started(self.pid) == self.start
