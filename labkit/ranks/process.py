"""A rank's process as the kernel holds it: its pid, sockets, pipes, and how it ended."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from labkit.ranks import wire
from labkit.ranks.errors import how_it_ended

now = time.monotonic
NOTE = "labkit: "  # begins what a rank leaves for the kernel as it ends itself
LOCAL_PIDS = 1 << 32  # pids of this machine are below; on other machines a multiple of it is added


class StartError(RuntimeError):
    """Ranks could not be started; the message says why."""


@dataclass
class Process:
    """A rank process: its pid (see LOCAL_PIDS), the kernel's ends of its sockets and pipes, and how it ended."""

    pid: int
    calls: wire.Channel
    control: wire.Channel
    out: int
    err: int
    crash: int  # a file where the rank writes its stack as a fatal signal ends it
    code: int | None = None
    closed: bool = field(default=False, repr=False)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.calls.close()
            self.control.close()
            os.close(self.out)
            os.close(self.err)
            os.close(self.crash)

    def last_words(self) -> str:
        """The stacks that the rank wrote as a fatal signal (SIGSEGV, SIGABRT, ...) ended it; '' otherwise."""
        return os.pread(self.crash, 1 << 16, 0).decode(errors="replace")

    def ending(self) -> str:
        """How it ended, in words."""
        words, _, _ = self.last_words().partition("\n")
        return words.removeprefix(NOTE) if words.startswith(NOTE) else how_it_ended(self.code)

    @property
    def stopped(self) -> bool:
        """Whether a signal such as SIGSTOP holds it; False where that cannot be told."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except OSError:  # it has ended, is on another machine, or this is no Linux
            return False


class Starter:
    """What both ways of starting ranks on this machine share: `Spawner` forks them, `Interpreters` start anew."""

    host = "127.0.0.1"  # where the rendezvous store of its ranks listens

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.ended: dict[int, int] = {}
        self.users = 0  # how many groups of ranks it serves

    def place(self, rank: int) -> dict[str, Any]:
        """What a rank must be told beyond the pool's own settings: nothing, on one machine."""
        return {}

    def reaches(self) -> bool:
        """Whether ranks can still be told something."""
        return True

    def release(self) -> None:
        """One group that it served has ended."""
        self.users -= 1

    def signal(self, pids: list[int], number: int, group: bool = False) -> None:
        """Send a signal to ranks (with `group`, to everything they started too)."""
        raise NotImplementedError

    def wait_ended(self, pids: list[int], limit: float) -> bool:
        """Wait until ranks are reaped; False when that takes longer than `limit` seconds."""
        raise NotImplementedError

    def kill(self, processes: list[Process], limit: float = 10.0) -> None:
        """End ranks for good: kill their process groups, wait until they are reaped, close their files.

        A process that a GPU's kernel holds takes seconds to end, and its memory is there until then.
        """
        if self.reaches():
            pids = [p.pid for p in processes]
            self.signal(pids, signal.SIGKILL, group=True)
            self.wait_ended(pids, limit)
        for process in processes:
            process.code = self.ended.pop(process.pid, None)
            process.close()


@contextmanager
def plumbing(listener: socket.socket | None) -> Iterator[tuple[Process, list[int]]]:
    """A process-to-be and the files for its side: out, err, calls, control, crash and, for rank 0, the listener.

    Our copies of its files are closed at the end, and everything is when starting it fails.
    """
    out, child_out = os.pipe()
    err, child_err = os.pipe()
    calls, child_calls = socket.socketpair()
    control, child_control = socket.socketpair()
    for fd in (out, err):
        os.set_blocking(fd, False)
    process = Process(0, wire.Channel(calls), wire.Channel(control), out, err, crash_file())
    files = [child_out, child_err, child_calls.fileno(), child_control.fileno(), process.crash]
    try:
        yield process, [*files, *([] if listener is None else [listener.fileno()])]
    except BaseException:
        process.close()
        raise
    finally:
        os.close(child_out)
        os.close(child_err)
        child_calls.close()
        child_control.close()


def crash_file() -> int:
    """An unnamed file, open for a rank's last words."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("labkit-crash")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
