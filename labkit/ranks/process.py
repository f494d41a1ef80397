"""A rank's process as the kernel holds it: its files, how it ended, and whether processes that start get on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

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


@contextmanager
def plumbing(listener: socket.socket | None) -> Iterator[tuple[Process, list[int]]]:
    """Make the sockets and pipes of a rank that is about to be started.

    The rank's ends are closed here when the block ends; both ends are if it raises.

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
    return os.memfd_create("labkit-crash")
