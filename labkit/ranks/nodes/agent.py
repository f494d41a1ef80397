"""The torchrun processes other than rank 0's: each starts its rank when the driver asks, and ends with the driver."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labkit import hardware
from labkit.ranks import fresh, spawn, wire
from labkit.ranks.nodes import launch as launching
from labkit.ranks.nodes.launch import Launch
from labkit.ranks.process import StartError, crash_file

STREAMS = ("calls", "control", "out", "err")


class RemoteRank:
    """A rank process of this machine; the driver on another one holds its sockets."""

    def __init__(self) -> None:
        self.pid, self.code, self.crash = 0, None, crash_file()

    def last_words(self) -> str:
        """Return the stack that it wrote as a fatal signal ended it."""
        return os.pread(self.crash, 1 << 16, 0).decode(errors="replace")

    def close(self) -> None:
        """Close its files."""
        if self.crash >= 0:
            os.close(self.crash)
            self.crash = -1


class Agent:
    """Serves one driver: `fork`, `signal` and `end` come in, `forked` and `ended` go out.

    Args:
        launch: What torchrun has told this process.
        starter: Starts ranks on this machine.
    """

    def __init__(self, launch: Launch, starter: Any):
        self.starter = starter
        where, _, self.token = launching.store(launch).get("driver").decode().rpartition(" ")
        host, _, port = where.rpartition(":")
        self.driver = (host, int(port))
        self.link = self._connect(kind="agent", **_about(launch))
        self.channel = wire.Channel(self.link)
        self.ranks: dict[int, RemoteRank] = {}

    def _connect(self, **about: Any) -> socket.socket:
        try:
            sock = socket.create_connection(self.driver, timeout=20)
        except OSError as error:
            raise RuntimeError(
                f"cannot reach rank 0's process at {self.driver[0]}:{self.driver[1]}: {error}"
            ) from error
        sock.settimeout(None)
        launching.keep_alive(sock)
        mine = sock.getsockname()[0]
        launching.send_greeting(
            sock, self.token, **about, interface=launching.interface(mine), seen=sock.getpeername()[0]
        )
        return sock

    def serve(self) -> int:
        """Serve until the driver ends the run.

        Returns:
            The exit status to leave with.

        Raises:
            RuntimeError: If the driver vanishes.
        """
        poller = select.poll()
        poller.register(self.channel.fileno(), select.POLLIN)
        poller.register(self.starter.fileno(), select.POLLIN)
        try:
            while True:
                poller.poll(500)
                self._report_ends()
                for kind, *rest in self._received():
                    if kind == "fork":
                        self._fork(*rest)
                    elif kind == "signal":
                        self.starter.signal(*rest)
                    elif kind == "end":
                        status, why = rest
                        if why:
                            print(f"labkit: rank 0 ended the run: {why}", file=sys.stderr)
                        return status
        finally:
            self.starter.kill(list(self.ranks.values()))
            self.channel.close()

    def _received(self) -> list[Any]:
        self.channel.flush()
        try:
            return self.channel.poll()
        except EOFError:
            host, port = self.driver
            raise RuntimeError(
                f"the connection to rank 0's process at {host}:{port} was lost (its machine or the link is gone, "
                "or the process was killed): the run is over, this machine's rank was ended"
            ) from None

    def _fork(self, ticket: int) -> None:
        try:
            process = self.starter.fork(pipes=self._sockets(ticket))
        except (StartError, RuntimeError) as error:
            self.channel.post(wire.frame(("forked", ticket, str(error))))
            return
        self.ranks[process.pid] = process
        self.channel.post(wire.frame(("forked", ticket, process.pid)))

    def _sockets(self, ticket: int) -> Any:
        """What `process.plumbing` is on one machine, with the other ends at the driver."""

        @contextmanager
        def pipes(listener: socket.socket | None) -> Iterator[tuple[Any, list[int]]]:
            far = RemoteRank()
            socks: dict[str, socket.socket] = {}
            try:
                for name in STREAMS:
                    socks[name] = self._connect(kind="stream", ticket=ticket, name=name)
                files = [socks[name].fileno() for name in ("out", "err", "calls", "control")]
                yield far, [*files, far.crash]
            except BaseException:
                far.close()
                raise
            finally:
                for sock in socks.values():
                    sock.close()

        return pipes

    def _report_ends(self) -> None:
        self.starter.receive()
        for pid in [pid for pid in self.ranks if pid in self.starter.ended]:
            far = self.ranks.pop(pid)
            self.channel.post(wire.frame(("ended", pid, self.starter.ended.pop(pid), far.last_words())))
            far.close()


def _about(launch: Launch) -> dict[str, Any]:
    return {
        "rank": launch.rank,
        "node": launch.node,
        "local_rank": launch.local_rank,
        "local_world_size": launch.local_world_size,
        "host": socket.gethostname(),
        "hardware": hardware.name(),
        "gpus": len(hardware.gpus()),
        "torch": hardware.torch_version(),
        "cwd": os.getcwd(),
        "path": list(sys.path),
    }


def serve(launch: Launch) -> int:
    """Be the agent of a rank until the driver ends the run.

    Args:
        launch: What torchrun has told this process.

    Returns:
        The exit status to leave with.

    Raises:
        RuntimeError: If the driver cannot be reached, or vanishes.
    """
    starter = spawn.shared() if sys.platform == "linux" else fresh.Interpreters(os.environ)
    starter.users += 1
    return Agent(launch, starter).serve()
