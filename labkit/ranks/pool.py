"""The processes of one group of ranks, and the one loop that serves them: answers, output and deaths together."""

from __future__ import annotations

import math
import os
import select
import signal
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from labkit.ranks import wire
from labkit.ranks.errors import Outcome, RankError, crash_frames
from labkit.ranks.fresh import Interpreters
from labkit.ranks.member import Member
from labkit.ranks.nodes.driver import Nodes
from labkit.ranks.process import Process, now
from labkit.ranks.spawn import Spawner

Starter = Spawner | Interpreters | Nodes

START_LIMIT_S = 60.0


class Pool:
    """Live ranks of one process group. Everything waits in the calling thread, so an interrupt works.

    `starter` starts and ends the processes. `config` is what every rank is told as it starts; rank and port are
    added. Raises RankError when a rank fails to start, ValueError when the port cannot be used.
    """

    def __init__(self, world_size: int, config: dict[str, Any], port: int, starter: Starter):
        self.spawner = spawner = starter
        listener = wire.listening_socket(port, starter.host)
        processes: list[Process] = []
        try:
            for rank in range(world_size):
                hosts_store = rank == 0 and config["backend"] != "fake"
                processes.append(spawner.fork(listener if hosts_store else None, rank=rank))
        except BaseException:
            spawner.kill(processes)
            raise
        finally:
            port = listener.getsockname()[1]
            listener.close()
        self.members = [Member(rank, process) for rank, process in enumerate(processes)]
        self._kinds: Any = None
        spawner.users += 1
        # runs when the pool is dropped, too: ranks that nobody can reach any more must not stay
        self.end = weakref.finalize(self, _end, spawner, processes, os.getpid())
        try:
            for member in self.members:
                message = {**config, "rank": member.rank, "world_size": world_size, "port": port}
                message |= spawner.place(member.rank)
                member.process.calls.post(wire.frame(message))
            failed = lambda: any(m.outcome for m in self.members)  # noqa: E731
            self.pump(lambda: all(m.up for m in self.members), START_LIMIT_S, stop=failed)
            if not all(m.up for m in self.members):
                self.ask("where", [m for m in self.members if not m.up and not m.outcome])
                outcomes = [
                    m.outcome or (Outcome(m.rank, "ok") if m.up else m.unfinished()) for m in self.members
                ]
                raise RankError("the ranks could not be started", outcomes, ended="not started")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every rank. Calling it again does nothing."""
        if self.end.alive:
            for member in self.members:
                for printer in member.printers:
                    printer.drain()
                    printer.finish()
            self.end()

    def kill(self) -> None:
        """Kill every rank, from any thread; whoever serves the pool hears of it."""
        self.spawner.signal([m.process.pid for m in self.members], signal.SIGKILL, group=True)

    def finish_output(self) -> None:
        """Print what the ranks have written, also what does not end in a newline."""
        self.serve(0)
        for member in self.members:
            for printer in member.printers:
                printer.finish()

    def ask(self, question: str, members: Sequence[Member]) -> None:
        """Ask ranks a question, 'where' or 'look'; `member.standing` or `.glance` has what each answered in time."""
        name = "standing" if question == "where" else "glance"
        members = [m for m in members if not m.dead]
        for member in members:
            setattr(member, name, None)
            member.process.control.post(wire.frame(question))
        self.pump(lambda: all(getattr(m, name) is not None or m.dead for m in members), self.spawner.answer_s)

    def interrupt(self, members: Sequence[Member]) -> None:
        """Raise KeyboardInterrupt in the Python code of ranks; one in a blocking collective does not notice."""
        self.spawner.signal([m.process.pid for m in members], signal.SIGINT)

    def pump(
        self, done: Callable[[], bool], limit: float | None, stop: Callable[[], bool] | None = None
    ) -> bool:
        """Serve sockets, pipes and deaths until `done()` or `stop()`; False when `limit` seconds passed first."""
        deadline = None if limit is None else now() + limit
        while not done():
            if stop is not None and stop():
                return True
            left = None if deadline is None else deadline - now()
            if left is not None and left <= 0:
                return False
            self.serve(left)
        return True

    def serve(self, wait: float | None) -> None:
        """One round: wait at most `wait` seconds for something to happen and handle it."""
        kinds = (
            self.spawner.fileno(),
            *(
                (m.dead, m.process.calls.wants_write, *(printer.open for printer in m.printers))
                for m in self.members
            ),
        )
        if kinds != self._kinds:  # mostly not: registering everything anew took a tenth of a call
            self._kinds = kinds
            self._poller, self._handlers = self._watched()
        # rounded up, or the last part of a millisecond would be spent in turning round; 0 does not wait at all
        for fd, _ in self._poller.poll(None if wait is None else math.ceil(max(wait, 0) * 1000)):
            self._handlers[fd]()
        for member in self.members:
            if member.dead and not member.noted:
                self._note_death(member)

    def _watched(self) -> tuple[select.poll, dict[int, Callable[[], Any]]]:
        """Everything that something may happen on, and what to do then."""
        poller = select.poll()
        handlers: dict[int, Callable[[], Any]] = {}
        if (fd := self.spawner.fileno()) >= 0:
            handlers[fd] = self.spawner.hear
            poller.register(fd, select.POLLIN)
        for member in self.members:
            if not member.dead:
                calls, control = member.process.calls, member.process.control
                handlers[calls.fileno()] = member.hear_calls
                poller.register(calls, select.POLLIN | (select.POLLOUT if calls.wants_write else 0))
                handlers[control.fileno()] = member.hear_control
                poller.register(control, select.POLLIN)
            for printer in member.printers:
                if printer.open:
                    handlers[printer.fd] = printer.drain
                    poller.register(printer.fd, select.POLLIN)
        return poller, handlers

    def _note_death(self, member: Member) -> None:
        pid = member.process.pid
        # the connection closes a moment before the zygote has reaped the process
        self.spawner.wait_ended([pid], 1.0)
        member.process.code, member.noted = self.spawner.ended.get(pid), True
        if member.outcome is None:
            frames, how = crash_frames(member.process.last_words()), member.process.ending()
            member.outcome = Outcome(
                member.rank, "dead", message=how, frames=frames, code=member.process.code
            )


def _end(spawner: Starter, processes: list[Process], owner: int) -> None:
    if os.getpid() == owner:  # a fork of the kernel must not end the kernel's ranks
        spawner.kill(processes)
        spawner.release()
