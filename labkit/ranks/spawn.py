"""The kernel's side of the zygote: starts it in the background, has it fork ranks, and hears how they ended.

Torch does not read again in a fork what it reads of the environment as it is imported. So ranks whose environment
differs in such a variable are forked by a zygote of their own.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from labkit import torch_compat
from labkit.ranks.environment import Started, complete
from labkit.ranks.process import (
    SAMPLE_S,
    STILL_S,
    Effort,
    Process,
    StartError,
    crash_file,
    now,
    plumbing,
)

# what ranks need; the last one listens to what is compiled
PRELOAD = (
    *torch_compat.PRELOAD,
    "labkit.ranks.worker",
    "labkit.shm",
    "pandas",
    "oddrank.record.process",
)
KEPT = 2  # zygotes that serve no group and stay, the one used last first
ANSWER_S = 2.0  # that a stuck rank has to say where it stands
TICK_S = 0.5  # how often a wait asks again
REAPS_S = 1.0
LAST_WORDS = 1 << 16  # bytes of what a zygote has said that are looked at


class Spawner:
    """A zygote and the ranks that it has forked; `shared()` gives the one to use.

    Args:
        environ: The environment that the zygote is started in.

    Attributes:
        ended: The exit codes of ranks that have ended, by pid.
        users: Number of groups of ranks that it serves.
        gone: Whether it can start no rank any more.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.ended: dict[int, int] = {}
        self.users = 0
        self.gone = False
        self.started = Started(environ)
        self._said = crash_file()  # a pipe that nobody reads would be full at some time
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        in_main = threading.current_thread() is threading.main_thread()
        # the parent-death signal fires when the *thread* that started the zygote ends: only the main one will do
        parent = os.getpid() if in_main else 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "labkit.ranks.zygote", str(theirs.fileno()), str(parent), *PRELOAD],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env=self.started.environ,
            start_new_session=True,
        )
        theirs.close()
        self.sock = ours
        self.ready = False
        self.reaps_s = STILL_S  # within this the end of a rank is reported: not during an import
        self._forked: dict[int, dict[str, Any]] = {}  # by ticket
        self._ticket = 0

    def fileno(self) -> int:
        """Return the file to poll for news of ranks, -1 if there is none any more."""
        return -1 if self.gone else self.sock.fileno()

    def alive(self) -> bool:
        """Whether the zygote still runs."""
        return not self.gone and self.process.poll() is None

    def receive(self) -> None:
        """Read what the zygote has said, without waiting. When it ends, so do its ranks, which report it themselves."""
        while self.fileno() >= 0 and select.select([self.sock], [], [], 0)[0]:
            message = self.sock.recv(1 << 16)
            if not message:
                self.gone = True
                return
            said = json.loads(message)
            if "ready" in said:
                self.ready, self.reaps_s = True, REAPS_S
                self.started.read, self.started.made = frozenset(said["read"]), said["made"]
            elif "forked" in said:
                self._forked[said["forked"]] = said
            elif "ended" in said:
                self.ended[said["ended"]] = said["code"]

    def _expect(
        self, done: Callable[[], bool], what: str, waiting: Callable[[float], object] | None = None
    ) -> None:
        """Wait as long as the zygote lives and gets on: a loaded machine or a slow disk is no error."""
        effort = Effort([self.process.pid])
        while not self.wait(done, SAMPLE_S):
            if self.gone:
                raise StartError(f"the process that starts ranks ended: {self._last_words()}")
            if effort.still_s() > STILL_S:
                raise StartError(f"{what} has made no progress for {STILL_S:.0f} s")
            if waiting:
                waiting(now() - effort.began)

    def wait_ready(self, waiting: Callable[[float], object] | None = None) -> None:
        """Wait until the zygote has imported torch and its compiler.

        Raises:
            StartError: If it ends before, or makes no progress for STILL_S.
        """
        self._expect(lambda: self.ready, "importing torch", waiting)

    def fits(self, environ: Mapping[str, str], waiting: Callable[[float], object] | None = None) -> bool:
        """Whether its forks can run in `environ`; waits for its imports, as `wait_ready`, if only they can tell."""
        if self.started.environ == environ:
            return True
        try:
            self.wait_ready(waiting)
        except StartError:
            return False
        return not self.started.late(environ)

    def fork(self, listener: socket.socket | None = None) -> Process:
        """Start one rank.

        Args:
            listener: The listening socket of the rendezvous store, for the rank that serves it.

        Raises:
            StartError: If it cannot be started.
        """
        self.wait_ready()
        with plumbing(listener) as (process, files):
            self._ticket += 1
            ticket = self._ticket
            try:
                socket.send_fds(self.sock, [json.dumps({"fork": ticket}).encode()], files)
            except OSError as error:
                raise StartError(f"the process that starts ranks is gone: {self._last_words()}") from error
            self._expect(lambda: ticket in self._forked, "forking a rank")
            said = self._forked.pop(ticket)
            if "why" in said:
                raise StartError(f"this machine refused to fork a rank: {said['why']}")
            process.pid = said["pid"]
            return process

    def signal(self, pids: list[int], number: int, group: bool = False) -> None:
        """Send a signal to ranks or, with `group`, to their process groups: what they have started gets it, too."""
        if pids and self.alive():
            with suppress(OSError):
                self.sock.send(json.dumps({"signal": int(number), "pids": pids, "group": group}).encode())

    def wait_ended(self, pids: list[int], limit: float) -> bool:
        """Wait until ranks have ended; False if that takes longer than `limit` seconds."""
        return self.wait(lambda: all(pid in self.ended for pid in pids), limit)

    def wait(self, done: Callable[[], bool], limit: float) -> bool:
        """Read the news of ranks until `done()`; False if `limit` seconds have passed or the zygote is gone."""
        began = now()
        self.receive()
        while not done():
            left = began + limit - now()
            if left <= 0 or self.gone:
                return False
            select.select([self], [], [], min(left, TICK_S))
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

    def close(self) -> None:
        """End the zygote and every rank it forked."""
        if os.getpid() != self.owner:  # a fork of the kernel must not end the kernel's ranks
            return
        self.sock.close()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._said >= 0:
            os.close(self._said)
            self._said = -1
        atexit.unregister(self.close)

    def release(self) -> None:
        """Note that one group has ended; the zygote stays while it is among the last that were used."""
        self.users -= 1
        _forget()

    def _last_words(self) -> str:
        try:
            how = f"exit code {self.process.wait(20)}"  # slow where many processes run
        except subprocess.TimeoutExpired:
            how = "it closed its socket"
        size = os.fstat(self._said).st_size
        text = os.pread(self._said, LAST_WORDS, max(size - LAST_WORDS, 0)).decode(errors="replace").strip()
        # an exception may go on for lines after the one that names it
        named = list(re.finditer(r"^[\w.]+(Error|Exception)\b", text, re.MULTILINE))
        said = " ".join(text[named[-1].start() :].split()) if named else text.rpartition("\n")[2]
        return f"{how}, {said[:300] or 'no message'}"


_zygotes: list[Spawner] = []  # of this process, the one used last at the end


def shared(
    environ: Mapping[str, str] | None = None, waiting: Callable[[float], object] | None = None
) -> Spawner:
    """Return a zygote for ranks in an environment; starts one if no running one fits.

    Args:
        environ: The environment of the ranks; None for that of this process.
        waiting: Is called with the seconds so far, again and again, while the imports of a running one are awaited.
    """
    wanted = complete(os.environ if environ is None else environ)
    _end([spawner for spawner in _zygotes if spawner.owner != os.getpid() or not spawner.alive()])
    found = next((spawner for spawner in reversed(_zygotes) if spawner.fits(wanted, waiting)), None)
    if found is None:
        found = Spawner(wanted)
        atexit.register(found.close)
    _zygotes[:] = [*(spawner for spawner in _zygotes if spawner is not found), found]
    _forget()
    return found


def _forget() -> None:
    """End the zygotes that serve no group, except the ones used last."""
    _end([spawner for spawner in _zygotes if not spawner.users][:-KEPT])


def _end(those: list[Spawner]) -> None:
    _zygotes[:] = [spawner for spawner in _zygotes if spawner not in those]
    for spawner in those:
        spawner.close()
