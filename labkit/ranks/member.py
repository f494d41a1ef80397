"""One rank as the kernel sees it: its process, what it has answered, what it prints."""

from __future__ import annotations

from typing import Any

from labkit.ranks.errors import Outcome, from_report
from labkit.ranks.output import Printer
from labkit.ranks.process import Process
from labkit.ranks.standing import Glance, Standing
from labkit.ranks.wire import Packed

STOPPED = "stopped by a signal; SIGCONT lets it go on"


class Member:
    """The state of one rank. `outcome` is set once the current call has ended on it, however it ended."""

    def __init__(self, rank: int, process: Process):
        self.rank, self.process = rank, process
        self.up = False
        self.dead = self.noted = False  # noted: how it ended is known
        self.number = -1
        self.outcome: Outcome | None = None
        self.value: Packed | None = None
        self.standing: Standing | None = None
        self.glance: Glance | None = None
        self.sent: set[str] = set()
        self.printers = [Printer(process.out, rank, error=False), Printer(process.err, rank, error=True)]

    def begin(self, number: int) -> None:
        self.number, self.outcome, self.value = number, None, None
        self.standing = self.glance = None

    def hear_calls(self) -> None:
        """Read answers to calls; a closed connection marks the rank dead (the caller asks how it ended)."""
        self.process.calls.flush()
        try:
            messages = self.process.calls.poll()
        except EOFError:
            self.dead = True
            return
        for kind, *rest in messages:
            if kind == "up":
                self.up = True
            elif kind == "failed":
                self.outcome = from_report(self.rank, rest[0])
            elif rest[0] == self.number:
                self._finish(kind, rest[1])

    def _finish(self, kind: str, answer: Any) -> None:
        if kind == "ok":
            self.outcome, self.value = Outcome(self.rank, "ok"), answer
        elif kind == "error":
            self.outcome = from_report(self.rank, answer)
        else:
            self.outcome = Outcome(self.rank, "unpicklable", message=answer)

    def hear_control(self) -> None:
        """Read answers of the control thread; its end is the process' end, which the call socket reports."""
        try:
            for question, answer in self.process.control.poll():
                if question == "look":
                    self.glance = answer
                else:
                    self.standing = answer
        except EOFError:
            self.dead = True

    def unfinished(self) -> Outcome:
        """How the call stands on a rank that has not ended it."""
        if self.standing is None:
            return Outcome(self.rank, "unfinished", message=STOPPED if self.process.stopped else "")
        silent = "in a built-in function called directly"
        return Outcome(
            self.rank, "unfinished", message=silent, frames=self.standing.frames, waits=self.standing.waits
        )

    @property
    def state(self) -> str:
        """What the rank is doing, as far as it last said."""
        if self.dead:
            return f"gone: {self.process.ending()}"
        if self.process.stopped:
            return STOPPED
        if self.number < 0:
            return "idle"
        if self.outcome is not None:
            return "finished"
        return self.glance.describe() if self.glance else "busy outside Python"

    def ended(self) -> Outcome:
        """How the call ended or stands, with what the rank has said about its collectives."""
        outcome = self.outcome or self.unfinished()
        if self.standing is not None:
            outcome.collectives = self.standing.collectives
        return outcome
