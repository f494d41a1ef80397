"""The kernel's side of the zygote: start it in the background, have it fork ranks, hear how they ended."""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import torch_compat
from labkit.ranks import wire
from labkit.ranks.process import Process, Starter, StartError, now, plumbing

# what ranks need; labkit.graphs brings pandas and the structured-trace subscriber
PRELOAD = (*torch_compat.PRELOAD, "labkit.ranks.worker", "labkit.ranks.shm", "labkit.graphs")
START_LIMIT_S = 120.0


class Spawner(Starter):
    """One zygote and the ranks it forked. Use `shared()`; a second kernel has its own."""

    answer_s = 2.0  # how long a stuck rank has to say where it stands

    def __init__(self) -> None:
        super().__init__()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        in_main = threading.current_thread() is threading.main_thread()
        # the parent-death signal fires when the *thread* that started the zygote ends: only the main one will do
        parent = os.getpid() if in_main else 0
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        env.setdefault(
            "OPENBLAS_NUM_THREADS", "1"
        )  # numpy would start threads at import, and a fork loses them
        here = str(
            Path(__file__).resolve().parents[2]
        )  # labkit may be on sys.path only, as in a notebook's first cell
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [here, env.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "labkit.ranks.zygote", str(theirs.fileno()), str(parent), *PRELOAD],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        theirs.close()
        self.sock = ours
        self.ready = False
        self._pids: dict[int, int] = {}
        self._failed: dict[int, str] = {}
        self._ticket = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def alive(self) -> bool:
        return self.process.poll() is None

    def hear(self) -> None:
        """Read what the zygote has said, without waiting."""
        while self.sock.fileno() >= 0 and select.select([self.sock], [], [], 0)[0]:
            message = self.sock.recv(1 << 16)
            if not message:
                raise StartError(f"the process that starts ranks ended: {self._last_words()}")
            said = json.loads(message)
            if "ready" in said:
                self.ready = True
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
            left = deadline - now()
            if left <= 0:
                raise StartError(f"{what} took more than {limit:.0f} s")
            select.select([self.sock], [], [], min(left, 0.5))
            self.hear()

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
        self._wait(lambda: self.ready, START_LIMIT_S, "importing torch")
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
        if pids and self.alive():
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
        if self.process.stderr:
            self.process.stderr.close()

    def _last_words(self) -> str:
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        text = self.process.stderr.read().decode(errors="replace").strip() if self.process.stderr else ""
        last = text.splitlines()[-1] if text else "no message"
        return f"exit code {code}, {last}"


_shared: Spawner | None = None


def shared() -> Spawner:
    """The zygote of this process, started on first use and again if it ended."""
    global _shared
    if _shared is None or _shared.owner != os.getpid() or not _shared.alive():
        _shared = Spawner()
        atexit.register(_shared.close)
    return _shared
