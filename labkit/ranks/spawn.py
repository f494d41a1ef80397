"""The kernel's side of the zygote: start it in the background, have it fork ranks, hear how they ended.

What torch reads of the environment as it is imported, it does not read again in a fork. Ranks whose environment differs
in such a variable are forked by a zygote of their own.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from labkit import torch_compat
from labkit.ranks import wire
from labkit.ranks.environment import Started, complete
from labkit.ranks.process import Process, Starter, StartError, crash_file, now, plumbing

# what ranks need; labkit.graphs brings pandas and the structured-trace subscriber
PRELOAD = (*torch_compat.PRELOAD, "labkit.ranks.worker", "labkit.ranks.shm", "labkit.graphs")
START_LIMIT_S = 120.0
KEPT = 2  # zygotes that serve no group and stay, the one used last first
LAST_WORDS = 1 << 16  # bytes of what a zygote has said that are looked at


class Spawner(Starter):
    """One zygote and the ranks it forked, started in `environ`. Use `shared()`; a second kernel has its own."""

    answer_s = 2.0  # how long a stuck rank has to say where it stands

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__()
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
        self.ready = self.gone = False
        self._pids: dict[int, int] = {}
        self._failed: dict[int, str] = {}
        self._ticket = 0

    def fileno(self) -> int:
        return -1 if self.gone else self.sock.fileno()

    def alive(self) -> bool:
        return not self.gone and self.process.poll() is None

    def hear(self) -> None:
        """Read what the zygote has said, without waiting; its end is its ranks' end, which they report themselves."""
        while self.fileno() >= 0 and select.select([self.sock], [], [], 0)[0]:
            message = self.sock.recv(1 << 16)
            if not message:
                self.gone = True
                return
            said = json.loads(message)
            if "ready" in said:
                self.ready = True
                self.started.read, self.started.made = frozenset(said["read"]), said["made"]
            elif "forked" in said:
                self._pids[said["forked"]] = said["pid"]
            elif "failed" in said:
                self._failed[said["failed"]] = said["why"]
            elif "ended" in said:
                self.ended[said["ended"]] = said["code"]

    def _wait(self, done: Callable[[], bool], limit: float, what: str) -> None:
        deadline = now() + limit
        self.hear()
        while not done():
            if self.gone:
                raise StartError(f"the process that starts ranks ended: {self._last_words()}")
            left = deadline - now()
            if left <= 0:
                raise StartError(f"{what} took more than {limit:.0f} s")
            select.select([self.sock], [], [], min(left, 0.5))
            self.hear()

    def wait_ready(self) -> None:
        """Wait until the zygote has imported torch. Raises StartError when it does not come to that."""
        self._wait(lambda: self.ready, START_LIMIT_S, "importing torch")

    def fits(self, environ: Mapping[str, str]) -> bool:
        """Whether its forks can be in `environ`; waits for its imports where that cannot be told before."""
        if self.started.environ == environ:
            return True
        try:
            self.wait_ready()
        except StartError:
            return False
        return not self.started.late(environ)

    def wait_ended(self, pids: list[int], limit: float) -> bool:
        """Wait until ranks are reaped; False when that takes longer than `limit` seconds."""
        try:
            self._wait(lambda: all(pid in self.ended for pid in pids), limit, "ending ranks")
        except StartError:
            return False
        return True

    def fork(self, listener: socket.socket | None = None, pipes: Any = plumbing, rank: int = 0) -> Process:
        """Fork one rank and return its process; rank 0 gets the rendezvous store's listening socket.

        Raises StartError when the zygote is gone or the machine refuses another process.
        """
        self.wait_ready()
        with pipes(listener) as (process, files):
            self._ticket += 1
            ticket = self._ticket
            try:
                wire.send_fds(self.sock, json.dumps({"fork": ticket}).encode(), files)
            except OSError as error:
                raise StartError(f"the process that starts ranks is gone: {self._last_words()}") from error
            self._wait(lambda: ticket in self._pids or ticket in self._failed, 30, "forking a rank")
            if ticket in self._failed:
                raise StartError(f"this machine refused to fork a rank: {self._failed.pop(ticket)}")
            process.pid = self._pids.pop(ticket)
            return process

    def signal(self, pids: list[int], number: int, group: bool = False) -> None:
        """Send a signal to ranks (with `group`, to everything they started too)."""
        if pids and self.alive() and not self.gone:
            try:
                self.sock.send(json.dumps({"signal": int(number), "pids": pids, "group": group}).encode())
            except OSError:
                pass

    def reaches(self) -> bool:
        """Whether the zygote was not closed first, as at exit: it takes its ranks along."""
        return self.sock.fileno() >= 0

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
        """One group that it served has ended: it stays while it is among the last that were used."""
        super().release()
        _forget()

    def _last_words(self) -> str:
        try:
            how = f"exit code {self.process.wait(5)}"
        except subprocess.TimeoutExpired:
            how = "it closed its socket"
        size = os.fstat(self._said).st_size
        text = os.pread(self._said, LAST_WORDS, max(size - LAST_WORDS, 0)).decode(errors="replace").strip()
        # an exception may go on for lines behind the one that names it
        named = list(re.finditer(r"^[\w.]+(Error|Exception)\b", text, re.MULTILINE))
        said = " ".join(text[named[-1].start() :].split()) if named else text.rpartition("\n")[2]
        return f"{how}, {said[:300] or 'no message'}"


_zygotes: list[Spawner] = []  # of this process, the one used last at the end


def shared(environ: Mapping[str, str] | None = None) -> Spawner:
    """The zygote of this process for ranks in `environ` (this process' own), started where there is none yet."""
    wanted = complete(os.environ if environ is None else environ)
    _end([spawner for spawner in _zygotes if spawner.owner != os.getpid() or not spawner.alive()])
    found = next((spawner for spawner in reversed(_zygotes) if spawner.fits(wanted)), None)
    if found is None:
        found = Spawner(wanted)
        atexit.register(found.close)
    _zygotes[:] = [*(spawner for spawner in _zygotes if spawner is not found), found]
    _forget()
    return found


def _forget() -> None:
    """End the zygotes that no group needs, but for the last ones."""
    _end([spawner for spawner in _zygotes if not spawner.users][:-KEPT])


def _end(those: list[Spawner]) -> None:
    _zygotes[:] = [spawner for spawner in _zygotes if spawner not in those]
    for spawner in those:
        spawner.close()
