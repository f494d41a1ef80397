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
from pathlib import Path
from typing import Any

from labkit.ranks.process import Process, Starter, StartError, now, plumbing

START = "from labkit.ranks import fresh; fresh.main()"
WHY = "every rank is a fresh interpreter and imports torch itself, which takes seconds"


class Interpreters(Starter):
    """Starts ranks as fresh interpreters and hears how they ended; takes the place of the zygote's `Spawner`."""

    answer_s = 10.0  # the first look at collectives makes torch import its compiler

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._rank_end, self._lifeline = os.pipe()  # nothing is ever written to it

    def fileno(self) -> int:
        return self._rank_end

    def alive(self) -> bool:
        return self._lifeline >= 0

    def hear(self) -> None:
        """Note who has ended, without waiting."""
        for pid, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                self.ended[pid] = code
                del self._running[pid]

    def wait_ended(self, pids: list[int], limit: float) -> bool:
        """Wait until ranks have ended; False when that takes longer than `limit` seconds."""
        deadline = now() + limit
        for pid in pids:
            if pid in self._running:
                try:
                    self._running[pid].wait(max(deadline - now(), 0))
                except subprocess.TimeoutExpired:
                    return False
        self.hear()
        return True

    def fork(self, listener: socket.socket | None = None, pipes: Any = plumbing, rank: int = 0) -> Process:
        """Start one rank; rank 0 gets the rendezvous store's listening socket.

        Raises StartError when the machine refuses another process.
        """
        with pipes(listener) as (process, files):
            files = [self._rank_end, *files]
            here = str(Path(__file__).resolve().parents[2])
            env = {**os.environ, "PYTHONUNBUFFERED": "1"}
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [here, env.get("PYTHONPATH", "")]))
            command = [sys.executable, "-c", START, *map(str, files)]
            try:
                started = subprocess.Popen(
                    command,
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    stdout=files[1],
                    stderr=files[2],
                    env=env,
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
            if pid in self._running:  # not yet reaped, so the number cannot have gone to another process
                try:
                    (os.killpg if group else os.kill)(pid, number)
                except ProcessLookupError:
                    pass

    def close(self) -> None:
        """End every rank that is left."""
        if os.getpid() == self.owner and self.alive():
            self.signal(list(self._running), signal.SIGKILL, group=True)
            self.wait_ended(list(self._running), 2.0)
            os.close(self._lifeline)
            os.close(self._rank_end)
            self._lifeline = -1


_shared: Interpreters | None = None


def shared() -> Interpreters:
    """The starter of this process."""
    global _shared
    if _shared is None or _shared.owner != os.getpid():
        _shared = Interpreters()
        atexit.register(_shared.close)
    return _shared


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

    worker.main(calls, control, listener[0] if listener else None)
