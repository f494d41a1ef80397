"""Ranks as fresh interpreters, for systems without the fork server and the parent-death signal of Linux.

Each rank imports torch, which takes seconds. Before that import it begins to watch the read end of a pipe, the
lifeline, whose other end the kernel holds. So the rank ends when the kernel does, however that ends.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from labkit.ranks.environment import Started, complete
from labkit.ranks.process import Process, Starter, StartError, plumbing

START = "from labkit.ranks import fresh; fresh.main()"
WHY = "every rank is a fresh interpreter and imports torch itself, which takes seconds"


class Interpreters(Starter):
    """Starts the ranks of one group as fresh interpreters.

    Args:
        environ: The environment of the ranks.
        own: The environments of single ranks that have one of their own.
    """

    answer_s = 10.0  # the first look at collectives makes torch import its compiler
    tick_s = 0.002

    def __init__(
        self, environ: Mapping[str, str], own: Mapping[int, Mapping[str, str]] | None = None
    ) -> None:
        super().__init__()
        self.started = Started(complete(environ))
        self._own = {rank: complete(mine) for rank, mine in (own or {}).items()}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._rank_end, self._lifeline = os.pipe()  # nothing is ever written to it
        atexit.register(self.close)

    def fileno(self) -> int:
        return self._rank_end

    def receive(self) -> None:
        """Note which ranks have ended, without waiting."""
        for pid, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                self.signal([pid], signal.SIGKILL, group=True)  # what is left of its group
                self.ended[pid] = code
                del self._running[pid]

    def has_ended(self, pid: int) -> bool:
        return pid not in self._running

    def fork(self, listener: socket.socket | None = None, rank: int = 0) -> Process:
        with plumbing(listener) as (process, files):
            files = [self._rank_end, *files]
            command = [sys.executable, "-c", START, *map(str, files)]
            try:
                started = subprocess.Popen(
                    command,
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    stdout=files[1],
                    stderr=files[2],
                    env=self._own.get(rank, self.started.environ),
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"this machine refused to start a rank: {error.strerror}") from error
            self._running[started.pid] = started
            process.pid = started.pid
            return process

    def signal(self, pids: list[int], number: int, group: bool = False) -> None:
        for pid in pids:
            if pid in self._running:  # not reaped before now, so the number has not gone to another process
                with suppress(ProcessLookupError):
                    (os.killpg if group else os.kill)(pid, number)

    def release(self) -> None:
        """End what is left; an `Interpreters` serves one group."""
        super().release()
        self.close()

    def close(self) -> None:
        """End every rank that is left."""
        atexit.unregister(self.close)
        if os.getpid() == self.owner and self._lifeline >= 0:
            self.signal(list(self._running), signal.SIGKILL, group=True)
            self.wait_ended(list(self._running), 2.0)
            os.close(self._lifeline)
            os.close(self._rank_end)
            self._lifeline = -1


def main() -> None:
    """Become a rank; `sys.argv` has the numbers of open files: LIFELINE OUT ERR CALLS CONTROL CRASH [LISTENER]."""
    lifeline, _, _, calls, control, crash, *listener = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the rank can tell whether it is running a call
    from oddrank.live.proc import end_with

    end_with(lifeline)
    faulthandler.enable(crash, all_threads=True)
    from labkit.ranks import worker

    worker.main(calls, control, crash, *listener)
