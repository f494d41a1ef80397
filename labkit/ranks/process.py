"""A rank's process as the kernel holds it, and the base class of what starts such processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oddrank.live.failure import how_it_ended
from oddrank.live.proc import IDLE, computed, stat

from labkit.ranks import wire

now = time.monotonic
NOTE = "labkit: "  # begins what a rank leaves for the kernel as it ends itself


class StartError(RuntimeError):
    """Ranks could not be started; the message says why."""


@dataclass
class Process:
    """A rank process: its pid, the kernel's ends of its sockets and pipes, and how it ended."""

    pid: int
    calls: wire.Channel
    control: wire.Channel
    out: int
    err: int
    crash: int  # a file where the rank writes its stack as a fatal signal ends it
    code: int | None = None
    closed: bool = field(default=False, repr=False)
    _spent: tuple[float, float] = field(default=(0.0, 0.0), repr=False)  # seconds of processor time, and when

    def close(self) -> None:
        """Close the kernel's ends; calling it again does nothing."""
        if not self.closed:
            self.closed = True
            self.calls.close()
            self.control.close()
            os.close(self.out)
            os.close(self.err)
            os.close(self.crash)

    def last_words(self) -> str:
        """Return the stacks that the rank wrote as a fatal signal (SIGSEGV, SIGABRT, ...) ended it; '' if none did."""
        return os.pread(self.crash, 1 << 16, 0).decode(errors="replace")

    def ending(self) -> str:
        """Describe how it ended, such as 'exit code 3'."""
        words, _, _ = self.last_words().partition("\n")
        return words.removeprefix(NOTE) if words.startswith(NOTE) else how_it_ended(self.code)

    @property
    def stopped(self) -> bool:
        """Whether a signal such as SIGSTOP holds it; False where that cannot be told."""
        return stat(self.pid)[0] in ("T", "t")

    def idle(self) -> bool:
        """Whether it sleeps, and has used less than a fiftieth of a processor since this was asked last."""
        fields = stat(self.pid)
        (before, last), self._spent = self._spent, (computed(fields), now())
        return fields[0] == "S" and self._spent[0] - before < IDLE * (self._spent[1] - last)


STILL_S = 60.0  # a start in which nothing has moved for this long is given up
SAMPLE_S = 1.0
READ = 4096  # bytes in a sample: fewer are no import


class Effort:
    """Whether processes get on: how long none of them has computed or read anything.

    A hung process wakes up now and then (gloo's loop computes 0.01 s in 5 s), so a fiftieth of a core is the least that
    counts. On a busy machine a starved process gets more than that, and one that waits for a slow disk reads.

    Args:
        pids: The processes.
    """

    def __init__(self, pids: Sequence[int]):
        self.pids, self.began = pids, now()
        self._last = self._moved = self.began
        self._seen = {pid: _spent(pid) for pid in pids}

    def still_s(self) -> float:
        """Return the seconds since a process has moved; outside Linux, which does not tell, since the beginning."""
        passed = now() - self._last
        if passed >= SAMPLE_S:
            before, self._seen = self._seen, {pid: _spent(pid) for pid in self.pids}
            for pid, (computed, read) in self._seen.items():
                if computed - before[pid][0] > passed / 50 or read - before[pid][1] > READ:
                    self._moved = now()
            self._last = now()
        return now() - self._moved


def _spent(pid: int) -> tuple[float, int]:
    """The processor seconds of a process, and the bytes that it has read; 0 for what cannot be told."""
    try:  # a hardened system lets nobody read this one
        read = int(Path(f"/proc/{pid}/io").read_text().partition("rchar: ")[2].split()[0])
    except (OSError, IndexError):
        read = 0
    return computed(stat(pid)), read


class Starter:
    """Base class of the ways to start ranks: `Spawner` forks them, `Interpreters` starts anew.

    Attributes:
        answer_s: Seconds that a stuck rank has to say where it stands.
        ended: The exit codes of ranks that have ended, by pid.
        users: Number of groups of ranks that it serves.
        gone: Whether it can start no rank any more.
    """

    answer_s = 10.0
    tick_s = 0.2  # how often a wait asks again
    reaps_s = 1.0  # within this time, the end of a rank is reported
    ended: Any

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.ended = {}
        self.users = 0
        self.gone = False

    def fileno(self) -> int:
        """Return the file to poll for news of ranks, -1 if there is none any more."""
        raise NotImplementedError

    def receive(self) -> None:
        """Read the news of ranks, without waiting."""
        raise NotImplementedError

    def fork(self, listener: socket.socket | None = None, rank: int = 0) -> Process:
        """Start one rank.

        Args:
            listener: The listening socket of the rendezvous store, for the rank that serves it.
            rank: Its number, where ranks have environments of their own.

        Raises:
            StartError: If it cannot be started.
        """
        raise NotImplementedError

    def signal(self, pids: list[int], number: int, group: bool = False) -> None:
        """Send a signal to ranks or, with `group`, to their process groups.

        Args:
            pids: The ranks.
            number: The signal.
            group: Whether what they have started gets it, too.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Note that one group which it served has ended."""
        self.users -= 1

    def has_ended(self, pid: int) -> bool:
        """Whether a rank has ended and was reaped."""
        return pid in self.ended

    def wait_ended(self, pids: list[int], limit: float) -> bool:
        """Wait until ranks have ended; False if that takes longer than `limit` seconds.

        Args:
            pids: The ranks.
            limit: Seconds to wait.
        """
        return self.wait(lambda: all(map(self.has_ended, pids)), limit)

    def wait(
        self, done: Callable[[], bool], limit: float, waiting: Callable[[float], object] | None = None
    ) -> bool:
        """Read the news of ranks until `done()`; False if `limit` seconds have passed or the starter is gone.

        Args:
            done: Says whether to return.
            limit: Seconds to wait.
            waiting: Is called with the seconds so far, again and again.
        """
        began = now()
        self.receive()
        while not done():
            left = began + limit - now()
            if left <= 0 or self.gone:
                return False
            if waiting:
                waiting(limit - left)
            select.select([self], [], [], min(left, self.tick_s))
            self.receive()
        return True

    def kill(self, processes: list[Process], limit: float = 10.0) -> None:
        """Kill the process groups of ranks, wait until they are reaped, and close their files.

        A process that a GPU's kernel holds takes seconds to end, and its memory is not free until then.

        Args:
            processes: The ranks.
            limit: Seconds to wait.
        """
        if self.fileno() >= 0:  # else the zygote was closed first, as at exit: it takes its ranks along
            pids = [p.pid for p in processes]
            self.signal(pids, signal.SIGKILL, group=True)
            self.wait_ended(pids, limit)
        for process in processes:
            process.code = self.ended.pop(process.pid, None)
            process.close()


@contextmanager
def plumbing(listener: socket.socket | None) -> Iterator[tuple[Process, list[int]]]:
    """Make the sockets and pipes of a rank that is about to be started.

    The rank's ends are closed here when the block ends; both ends are if it raises.

    Args:
        listener: The listening socket of the rendezvous store; None for ranks that do not serve it.

    Yields:
        The process, its pid still missing, and the files of the rank: out, err, calls, control, crash, listener.
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
    """Open an unnamed file, into which a rank writes its stack as a fatal signal ends it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("labkit-crash")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
