"""The zygote: a process that has imported torch once and forks ranks on request.

It starts no thread and uses no GPU, so forking it is safe. Every start of ranks after the first costs a fork instead of
an import. It gets its requests over a socket and reports how each rank ended. When the kernel is gone, however it
ended, the zygote ends every rank and then itself.

What a rank has started ends with the rank, even in a session of its own. Linux gives the orphans of a process to its
nearest ancestor that is a "child subreaper". A rank is one, so nothing that descends from it leaves it while it
lives. The zygote is one, too: when a rank has ended, what it left behind becomes a child of the zygote, whose other
children are ranks.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import ItemsView
from contextlib import suppress
from typing import ClassVar

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_S = 0.5  # a process that a driver holds takes longer to end, and nobody waits for it


def die_with_parent(parent: int, sig: int) -> None:
    """Ask Linux to send this process `sig` when its parent ends; ends now if it already has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Ask Linux to make orphans among the descendants of this process its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


class Noting(type(os.environ)):  # type: ignore[misc]  # a class that os does not name
    """`os.environ` that notes which names are looked up; going through all of them is no look-up."""

    read: ClassVar[set[str]] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(os.fsdecode(name))  # PATH is bytes when a program is started
        return super().__getitem__(name)

    def copy(self) -> dict[str, str]:
        return {name: super(Noting, self).__getitem__(name) for name in self}

    def items(self) -> ItemsView[str, str]:
        return self.copy().items()


class Zygote:
    """Serves requests to fork and to signal ranks on a SOCK_SEQPACKET socket, until its other end closes."""

    def __init__(self, sock: socket.socket, modules: list[str]):
        self.sock, self.modules = sock, modules
        self.children: set[int] = set()  # the ranks
        self.kept: set[int] = set()  # left behind by ranks, and not to be waited for again
        self.me = os.getpid()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)

    def serve(self) -> None:
        """Prepare, serve requests and report ends; never returns."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        adopt_orphans()
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        self.prepare()
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self.wake_read in ready:
                with suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
                self.reap()
            if self.sock.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 8)
                if not message:
                    self.end()
                self.handle(json.loads(message), fds)

    def prepare(self) -> None:
        """Import what ranks need, then say so.

        A module that this torch lacks is left for the rank to report. The other end hears which environment variables
        were looked up ("read"), and which the imports have set ("made").
        """
        before = dict(os.environ)
        os.environ.__class__ = Noting
        gc.disable()  # what imports make stays: looking for garbage among it takes a fifth of the time
        import_all(self.modules)
        settle()
        made = {name: value for name, value in os.environ.items() if before.get(name) != value}
        self.reply({"ready": True, "read": sorted(Noting.read), "made": made})

    def handle(self, request: dict, fds: list[int]) -> None:
        """Carry out one request, which came with open files."""
        if "fork" in request:
            self.fork(request, fds)
        elif "signal" in request:
            for pid in request["pids"]:
                if pid in self.children:  # not yet reaped, so the number cannot have gone to another process
                    self.signal(pid, request["signal"], group=request.get("group", False))

    @staticmethod
    def signal(pid: int, number: int, group: bool) -> None:
        """Signal a process or, with `group`, its process group; does nothing if it is gone."""
        try:
            (os.killpg if group else os.kill)(pid, number)
        except ProcessLookupError:
            with suppress(ProcessLookupError):
                os.kill(pid, number)  # not a group leader yet: it was forked this instant

    def fork(self, request: dict, fds: list[int]) -> None:
        """Fork a rank that takes over `fds`, and report its pid, or why it could not be forked."""
        try:
            pid = os.fork()
        except OSError as error:
            self.reply({"forked": request["fork"], "why": error.strerror})
            pid = -1
        if pid == 0:
            try:
                self.become_rank(fds)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self.children.add(pid)
            self.reply({"forked": request["fork"], "pid": pid})

    def become_rank(self, fds: list[int]) -> None:
        """Turn this fork of the zygote into a rank; never returns."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()  # a group of its own: Jupyter's interrupt signals the kernel's whole group
        die_with_parent(self.me, signal.SIGKILL)
        adopt_orphans()
        self.sock.close()
        os.close(self.wake_read)
        os.close(self.wake_write)
        out, err, calls, control, crash, *listener = fds
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        faulthandler.enable(crash, all_threads=True)
        from labkit.ranks import worker

        worker.main(calls, control, crash, *listener)

    def reap(self) -> None:
        """Kill what ranks that have ended had started, then report their ends."""
        codes = self.ended()
        if codes:
            self.sweep(time.monotonic() + SWEEP_S)
        for pid, code in codes.items():
            self.reply({"ended": pid, "code": code})

    def ended(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended, by pid."""
        codes = {}
        for pid in list(self.children):
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done, status = pid, 0
            if done:
                self.children.discard(pid)
                codes[pid] = os.waitstatus_to_exitcode(status)
        return codes

    def sweep(self, deadline: float) -> None:
        """Kill every child that is no rank, and those that become children as these end, until none is left."""
        while True:
            left = children() - self.children
            self.kept &= left
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
                except PermissionError:  # it runs as another user now
                    self.kept.add(pid)
                except (ProcessLookupError, ChildProcessError):
                    pass
            if not left - self.kept:
                return
            if time.monotonic() > deadline:
                self.kept |= left
                return
            time.sleep(0.001)

    def reply(self, message: dict) -> None:
        """Send a message to the kernel; ends everything if the kernel is gone."""
        try:
            self.sock.send(json.dumps(message).encode())
        except OSError:
            self.end()

    def end(self) -> None:
        """End every rank, what they have started, and this process."""
        for pid in self.children:
            self.signal(pid, signal.SIGKILL, group=True)
        deadline = time.monotonic() + SWEEP_S
        while self.children and time.monotonic() < deadline:
            self.ended()
            time.sleep(0.001)
        self.sweep(deadline)
        os._exit(0)


def import_all(names: list[str]) -> None:
    """Import modules; one that this torch lacks is left out."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def settle() -> None:
    """End what is there for imports only. Nobody looks for garbage in what was imported: that would copy its memory."""
    gc.freeze()
    gc.enable()
    os.environ.__class__ = Noting.__base__


def children() -> set[int]:
    """Return the children of this process, including those that have ended and were not waited for."""
    me, found = os.getpid(), set()
    with suppress(FileNotFoundError):  # Linux can be built without it
        with open(f"/proc/self/task/{me}/children") as listed:
            return set(map(int, listed.read().split()))
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):  # it has just ended
                continue
            if parent == me:
                found.add(int(name))
    return found


def main() -> None:
    """Run the zygote: `python -m labkit.ranks.zygote SOCKET_FD PARENT_PID MODULE...`."""
    fd, parent, modules = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if parent:
        die_with_parent(parent, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Zygote(socket.socket(fileno=fd), modules).serve()


if __name__ == "__main__":
    # run under the module's real name, so that a rank's imports find this copy
    from labkit.ranks import zygote

    zygote.main()
