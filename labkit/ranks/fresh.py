"""Ranks as fresh interpreters, for systems without Linux' fork of a prepared process and parent-death signal.

Each start of ranks imports torch anew, which takes seconds. A rank watches the read end of a pipe, the lifeline, from
before that import on: the kernel holds the other end, so the rank ends when the kernel does, however it went.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from labkit.ranks.environment import Started, complete
from labkit.ranks.process import Process, Starter, StartError, now, plumbing

START = "from labkit.ranks import fresh; fresh.main()"
WHY = "every rank is a fresh interpreter and imports torch itself, which takes seconds"


class Interpreters(Starter):
    """Starts the ranks of one group in `environ`, as fresh interpreters; takes the place of the zygote's `Spawner`."""

    answer_s = 10.0  # the first look at collectives makes torch import its compiler

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__()
        self.started = Started(complete(environ))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._rank_end, self._lifeline = os.pipe()  # nothing is ever written to it
        atexit.register(self.close)

    def fileno(self) -> int:
        return self._rank_end

    def alive(self) -> bool:
        return self._lifeline >= 0

    def hear(self) -> None:
        """Note who has ended, without waiting."""
        for pid, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                self.signal([pid], signal.SIGKILL, group=True)  # what is left of its group
                self.ended[pid] = code
                del self._running[pid]

    def wait_ended(self, pids: list[int], limit: float) -> bool:
        """Wait until ranks have ended; False when that takes longer than `limit` seconds."""
        deadline = now() + limit
        self.hear()
        while any(pid in self._running for pid in pids):
            if now() > deadline:
                return False
            time.sleep(0.002)
            self.hear()
        return True

    def fork(self, listener: socket.socket | None = None, pipes: Any = plumbing, rank: int = 0) -> Process:
        """Start one rank; rank 0 gets the rendezvous store's listening socket.

        Raises StartError when the machine refuses another process.
        """
        with pipes(listener) as (process, files):
            files = [self._rank_end, *files]
            command = [sys.executable, "-c", START, *map(str, files)]
            try:
                started = subprocess.Popen(
                    command,
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    stdout=files[1],
                    stderr=files[2],
                    env=self.started.environ,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"this machine refused to start a rank: {error.strerror}") from error
            self._running[started.pid] = started
            process.pid = started.pid
            return process

    def signal(self, pids: list[int], number: int, group: bool = False) -> None:
        """Send a signal to ranks (with `group`, to everything they started too)."""
        for pid in pids:
            if pid in self._running:  # not reaped before now, so the number has not gone to another process
                try:
                    (os.killpg if group else os.kill)(pid, number)
                except ProcessLookupError:
                    pass

    def release(self) -> None:
        """The group that it served has ended."""
        super().release()
        self.close()

    def close(self) -> None:
        """End every rank that is left."""
        atexit.unregister(self.close)
        if os.getpid() == self.owner and self.alive():
            self.signal(list(self._running), signal.SIGKILL, group=True)
            self.wait_ended(list(self._running), 2.0)
            os.close(self._lifeline)
            os.close(self._rank_end)
            self._lifeline = -1


def end_with(lifeline: int) -> None:
    """End this process' group as soon as the other end of a pipe is closed."""

    def watch() -> None:
        poller = select.poll()
        poller.register(lifeline, select.POLLIN)
        poller.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="labkit-lifeline").start()


def main() -> None:
    """Become a rank; the arguments are the numbers of open files: LIFELINE OUT ERR CALLS CONTROL CRASH [LISTENER]."""
    lifeline, _, _, calls, control, crash, *listener = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the rank can tell whether it is running a call
    end_with(lifeline)
    faulthandler.enable(crash, all_threads=True)
    from labkit.ranks import worker

    worker.main(calls, control, crash, listener[0] if listener else None)
