"""The processes of one group of ranks: how they are started, what is known of each, and the loop that serves them."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from oddrank.live.failure import Outcome, RankError, crash_frames
from oddrank.live.introspect import Activity, Snapshot

from labkit.ranks import wire
from labkit.ranks.interrupts import no_interrupt
from labkit.ranks.output import Printer
from labkit.ranks.process import STILL_S, Effort, Process, now
from labkit.ranks.spawn import ANSWER_S, Spawner
from labkit.ranks.wire import Packed

TICK_S = 0.5
STOPPED = "stopped by a signal; SIGCONT lets it go on"
SILENT = "in native code that holds Python's lock (GIL), and could not say where"


class Member:
    """One rank of a pool as the kernel sees it.

    Attributes:
        rank: Its number.
        process: Its process.
        dead: Whether its process has ended.
        noted: Whether it is known how the process ended.
        number: The number of its current or last call.
        finished: How a call ends that went well.
        outcome: How that call ended on this rank; None while it runs.
        value: What it returned.
        snapshot: Its last answer to "where": its stack and collectives.
        activity: Its last answer to "look": what it is doing.
        told: The sources of cells that it knows.
        printers: Print its output.
    """

    def __init__(self, rank: int, process: Process):
        self.rank, self.process = rank, process
        self.dead = self.noted = False
        self.number = wire.STARTING
        self.finished = Outcome(rank, "ok")
        self.outcome: Outcome | None = None
        self.value: Packed = None
        self.snapshot: Snapshot | None = None
        self.activity: Activity | None = None
        self.told: dict[str, tuple[str, str]] = {}
        self.printers = [Printer(process.out, rank, error=False), Printer(process.err, rank, error=True)]

    def begin(self, number: int, sources: dict[str, tuple[str, str]]) -> None:
        """Forget the last call: `number` is about to be sent, with what the rank does not know of `sources`."""
        self.told = sources
        self.number, self.outcome, self.value = number, None, None
        self.snapshot = self.activity = None

    def receive_answers(self) -> bool:
        """Read answers to calls; a closed connection marks the rank dead (the caller asks how it ended).

        Returns:
            Whether something else is to be polled from now on.
        """
        calls = self.process.calls
        if wrote := bool(calls.queued):
            calls.flush()
        try:
            messages = calls.poll()
        except EOFError:
            self.dead = True
            return True
        for number, answer in messages:
            if number == self.number:
                failed = isinstance(answer, Outcome)
                self.outcome, self.value = (answer, None) if failed else (self.finished, answer)
        return wrote

    def receive_reports(self) -> bool:
        """Read answers of the control thread; its end is the process' end, which the call socket reports.

        Returns:
            Whether something else is to be polled from now on.
        """
        try:
            for question, answer in self.process.control.poll():
                if question == "look":
                    self.activity = answer
                else:
                    self.snapshot = answer
        except EOFError:
            self.dead = True
        return self.dead

    def unfinished(self) -> Outcome:
        """Return how the call stands on this rank, which has not ended it."""
        if self.snapshot is None:
            return Outcome(self.rank, "unfinished", message=STOPPED if self.process.stopped else SILENT)
        if self.snapshot.failure is not None:
            return self.snapshot.failure
        silent = "in a built-in function called directly"
        return Outcome(
            self.rank,
            "unfinished",
            message=silent,
            frames=self.snapshot.frames,
            waits=self.snapshot.waits,
            compiling=self.snapshot.compiling,
            sends=self.snapshot.message,
        )

    @property
    def state(self) -> str:
        """What the rank is doing, as far as it last said."""
        if self.dead:
            return f"gone: {self.process.ending()}"
        if self.process.stopped:
            return STOPPED
        if self.number == wire.STARTING:
            return "idle"
        if self.outcome is not None:
            return "finished"
        return self.activity.describe() if self.activity else "in native code that holds Python's lock"

    def ended(self) -> Outcome:
        """Return how the call ended or stands, with what the rank has said about its collectives."""
        outcome = self.outcome or self.unfinished()
        if self.snapshot is not None:
            outcome.collectives = self.snapshot.collectives
        return outcome


class Pool:
    """The ranks of one process group. Everything waits in the calling thread, so that an interrupt works.

    Args:
        world_size: Number of ranks.
        config: What every rank is told as it starts; its rank and the port are added.
        spawner: Starts and ends the processes.
        waiting: Is called with the seconds so far, again and again, until every rank has started.

    Raises:
        RankError: If a rank fails to start.
    """

    def __init__(
        self,
        world_size: int,
        config: dict[str, Any],
        spawner: Spawner,
        waiting: Callable[[float], object] = lambda seconds: None,
    ):
        self.spawner = spawner
        # bound here, so that no other process can take its port
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        processes: list[Process] = []
        try:
            for rank in range(world_size):
                hosts_store = rank == 0 and config["backend"] != "fake"
                processes.append(spawner.fork(listener if hosts_store else None))
        except BaseException:
            spawner.kill(processes)
            raise
        finally:
            port = listener.getsockname()[1]
            listener.close()
        self.members = [Member(rank, process) for rank, process in enumerate(processes)]
        self._poller: select.poll | None = None
        self._news = -1  # the file of the zygote's news that it polls
        spawner.users += 1
        # runs when the pool is dropped, too: ranks that nobody can reach any more must not stay
        self.end = weakref.finalize(self, _end, spawner, processes, os.getpid())
        try:
            for member in self.members:
                message = {**config, "rank": member.rank, "world_size": world_size, "port": port}
                self.post(member, wire.frame(message))
            failed = lambda: any(m.outcome and m.outcome.kind != "ok" for m in self.members)  # noqa: E731
            answered = lambda: failed() or all(m.outcome for m in self.members)  # noqa: E731
            effort = Effort([process.pid for process in processes])
            while not self.pump(answered, TICK_S) and effort.still_s() < STILL_S:
                waiting(now() - effort.began)
            if not answered() or failed():
                self.ask("where", [m for m in self.members if not m.outcome])
                outcomes = [m.ended() for m in self.members]
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
        """Kill every rank; any thread may call it, and the one that serves the pool notices."""
        self.spawner.signal([m.process.pid for m in self.members], signal.SIGKILL, group=True)

    def finish_output(self) -> None:
        """Print what the ranks have written, incomplete lines included.

        A rank writes before it answers, and a poll looks at its answer first: what it wrote has been read by now.
        """
        for member in self.members:
            for printer in member.printers:
                if printer.begun:
                    printer.finish()

    def post(self, member: Member, parts: list[Any]) -> None:
        """Send framed bytes to a rank, what does not fit now later."""
        calls = member.process.calls
        calls.post(parts)
        if calls.queued:
            self._poller = None

    def ask(self, question: str, members: Sequence[Member]) -> None:
        """Ask ranks 'where' or 'look' and wait; `member.snapshot` or `.activity` has what each answered in time."""
        name = "snapshot" if question == "where" else "activity"
        members = [m for m in members if not m.dead]
        for member in members:
            setattr(member, name, None)
            member.process.control.post(wire.frame(question))
        self.pump(lambda: all(getattr(m, name) is not None or m.dead for m in members), ANSWER_S)

    def interrupt(self, members: Sequence[Member]) -> None:
        """Raise KeyboardInterrupt in the Python code of ranks; one in a blocking collective does not notice."""
        self.spawner.signal([m.process.pid for m in members], signal.SIGINT)

    def pump(self, done: Callable[[], bool], limit: float | None) -> bool:
        """Serve sockets, pipes and deaths until `done()`; False if `limit` seconds have passed first."""
        deadline = None if limit is None else now() + limit
        while not done():
            left = None if deadline is None else deadline - now()
            if left is not None and left <= 0:
                return False
            self.serve(left)
        return True

    def serve(self, wait: float | None) -> None:
        """Wait at most `wait` seconds (None: without limit) for something to happen, and handle it."""
        if self._poller is None or self._news != self.spawner.fileno():  # to register takes a tenth of a call
            self._poller, self._handlers = self._watched()
        # rounded up, or the last part of a millisecond would be spent in turning round; 0 does not wait at all
        for fd, _ in self._poller.poll(None if wait is None else math.ceil(max(wait, 0) * 1000)):
            if self._handlers[fd]():
                self._poller = None
        for member in self.members:
            if member.dead and not member.noted:
                self._note_death(member)

    def _watched(self) -> tuple[select.poll, dict[int, Callable[[], Any]]]:
        """Return a poller of everything that something may happen on, and what to do then.

        What is to be done returns whether something else is to be polled from now on.
        """
        poller = select.poll()
        handlers: dict[int, Callable[[], Any]] = {}
        self._news = self.spawner.fileno()
        if self._news >= 0:
            handlers[self._news] = self.spawner.receive
            poller.register(self._news, select.POLLIN)
        for member in self.members:
            if not member.dead:  # its answers before its output: see finish_output
                calls, control = member.process.calls, member.process.control
                handlers[calls.fileno()] = member.receive_answers
                poller.register(calls, select.POLLIN | (select.POLLOUT if calls.queued else 0))
                handlers[control.fileno()] = member.receive_reports
                poller.register(control, select.POLLIN)
            for printer in member.printers:
                if printer.open:
                    handlers[printer.fd] = printer.drain
                    poller.register(printer.fd, select.POLLIN)
        return poller, handlers

    def _note_death(self, member: Member) -> None:
        pid = member.process.pid
        # the connection closes a moment before the zygote has reaped the process
        self.spawner.wait_ended([pid], self.spawner.reaps_s)
        member.process.code, member.noted = self.spawner.ended.get(pid), True
        if member.outcome is None or member.number == wire.STARTING:
            frames, how = crash_frames(member.process.last_words()), member.process.ending()
            member.outcome = Outcome(
                member.rank, "dead", message=how, frames=frames, code=member.process.code
            )


def _end(spawner: Spawner, processes: list[Process], owner: int) -> None:
    if os.getpid() == owner:  # a fork of the kernel must not end the kernel's ranks
        with no_interrupt():
            spawner.kill(processes)
            spawner.release()
