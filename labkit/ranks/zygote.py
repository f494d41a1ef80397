"""The zygote: a process that has imported torch once and forks ranks on request.

It starts no thread and touches no GPU, so a fork of it is safe; every start of ranks after the first costs a
fork instead of an import. It is told what to do over a socket and reports how each rank ended. When the
kernel is gone, however it went, the zygote kills every rank's process group and ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, sig: int) -> None:
    """Ask Linux to send `sig` when the parent ends; end now if it already has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(1)


def preload(modules: list[str]) -> None:
    """Import what ranks need, once. A module that this torch lacks is left for the rank to complain about."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


class Zygote:
    """Serve fork, signal and exit messages on one SOCK_SEQPACKET socket until its other end closes."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.children: set[int] = set()
        self.me = os.getpid()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.reply({"ready": True, "threads": len(os.listdir("/proc/self/task"))})
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self.wake_read in ready:
                try:
                    os.read(self.wake_read, 4096)
                except BlockingIOError:
                    pass
                self.reap()
            if self.sock.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 8)
                if not message:
                    self.end()
                self.handle(json.loads(message), fds)

    def handle(self, request: dict, fds: list[int]) -> None:
        if "fork" in request:
            self.fork(request, fds)
        elif "signal" in request:
            for pid in request["pids"]:
                if pid in self.children:  # not yet reaped, so the number cannot have gone to another process
                    self.signal(pid, request["signal"], group=request.get("group", False))

    @staticmethod
    def signal(pid: int, number: int, group: bool) -> None:
        try:
            (os.killpg if group else os.kill)(pid, number)
        except ProcessLookupError:
            try:
                os.kill(pid, number)  # not a group leader yet: it was forked this instant
            except ProcessLookupError:
                pass

    def fork(self, request: dict, fds: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self.reply({"failed": request["fork"], "why": error.strerror})
            pid = -1
        if pid == 0:
            try:
                self.become_rank(fds)
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self.children.add(pid)
            self.reply({"forked": request["fork"], "pid": pid})

    def become_rank(self, fds: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()  # a group of its own: Jupyter's interrupt signals the kernel's whole group
        die_with_parent(self.me, signal.SIGKILL)
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

        worker.main(calls, control, listener[0] if listener else None)

    def reap(self) -> None:
        for pid in list(self.children):
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done, status = pid, 0
            if done:
                self.children.discard(pid)
                self.reply({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def reply(self, message: dict) -> None:
        try:
            self.sock.send(json.dumps(message).encode())
        except OSError:
            self.end()

    def end(self) -> None:
        for pid in self.children:
            self.signal(pid, signal.SIGKILL, group=True)
        deadline = time.monotonic() + 1
        while self.children and time.monotonic() < deadline:
            for pid in list(self.children):
                try:
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        self.children.discard(pid)
                except ChildProcessError:
                    self.children.discard(pid)
            time.sleep(0.002)
        os._exit(0)


def main() -> None:
    """`python -m labkit.ranks.zygote SOCKET_FD PARENT_PID MODULE...`"""
    fd, parent, modules = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if parent:
        die_with_parent(parent, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload(modules)
    Zygote(socket.socket(fileno=fd)).serve()


if __name__ == "__main__":
    # run under the module's real name, so that a rank's imports find this copy
    from labkit.ranks import zygote

    zygote.main()
