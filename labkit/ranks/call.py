"""One call on ranks: send it, watch it until it ends or stalls, and collect what each rank answered.

The stall limit tells ranks that wait for each other for ever from ranks that compile or compute for long.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oddrank.live.failure import Outcome, RankError, paragraphs

from labkit.per_rank import PerRank
from labkit.ranks import cells, wire
from labkit.ranks.pool import Member, Pool
from labkit.ranks.progress import Progress

GRACE_S = 0.5  # after the first failure, how long the other ranks have to report their own
QUIET_S = 2.0  # no rank is asked anything in a call shorter than this
EVERY_S = 1.0
STOP_S = 0.1  # how often a call looks whether another thread wants to stop it


@dataclass
class Call:
    """One call on some ranks of a pool.

    Attributes:
        pool: The processes.
        members: The ranks that take part.
        number: The call's number, which their answers repeat.
        limit: Seconds that it may take; None for no limit.
        stall: Seconds that it may stall; None for no limit.
        progress: Shows how a long call stands.
        stop: Set by another thread to end the call, as an interrupt would.
    """

    pool: Pool
    members: Sequence[Member]
    number: int
    limit: float | None
    stall: float | None
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.began

    def send(self, request: tuple[Any, ...]) -> None:
        """Queue a request, such as `("cell", source, ...)`, with the sources of cells that a rank does not know yet."""
        sources = cells.known_sources()
        framed: dict[int, list[Any]] = {}  # ranks that were told the same share one buffer
        kind, *parts = request
        messages = []
        for member in self.members:
            told = member.told
            if id(told) not in framed:
                news = {} if told is sources else {n: s for n, s in sources.items() if told.get(n) != s}
                framed[id(told)] = wire.frame((kind, self.number, news, *parts))
            messages.append(framed[id(told)])
            member.begin(self.number, sources)
        for member, message in zip(self.members, messages, strict=True):  # at once: they wait for each other
            self.pool.post(member, message)

    def watch(self) -> str:
        """Wait until the call is 'done', has 'failed', or ran into its limits: 'timeout' or 'stalled'.

        It has stalled when, for `stall` seconds, every rank that has not finished stood in the same collective or
        store wait, or slept in native code that lets no other thread run Python.

        Raises:
            KeyboardInterrupt: Another thread stopped the call.
        """
        how = "interrupted"
        try:
            how = self._watch()
            if how == "failed":
                self._pump(self._done, GRACE_S)
            return how
        finally:
            self.progress.end(how, self.seconds)

    def _pump(self, done: Callable[[], bool], limit: float) -> bool:
        """`Pool.pump`, which `stop` ends."""
        until = self.seconds + limit
        while not self.stop.is_set():
            left = until - self.seconds
            if self.pool.pump(done, min(left, STOP_S)):
                return True
            if left <= STOP_S:
                return False
        raise KeyboardInterrupt

    def _done(self) -> bool:
        return all(m.outcome for m in self.members)

    def _failed(self) -> bool:
        return any(m.outcome and m.outcome.kind in ("error", "dead") for m in self.members)

    def _over(self) -> bool:
        """Whether every rank has finished, or one has failed."""
        other = [m.outcome for m in self.members if m.outcome is not m.finished]
        return all(other) or any(other) and self._failed()

    def _watch(self) -> str:
        limit = math.inf if self.limit is None else self.limit
        stall = math.inf if self.stall is None else self.stall
        looks = self.progress.wanted or self.stall is not None
        look = min(QUIET_S, stall / 4) if looks else math.inf
        seen, since = None, 0.0
        while True:
            until = min(limit, look)
            if self._pump(self._over, until - self.seconds):
                return "failed" if self._failed() else "done"
            if (asked := self.seconds) >= limit:
                return "timeout"
            if asked < look:
                continue
            look = asked + min(EVERY_S, stall / 4)
            unfinished = [m for m in self.members if not m.outcome]
            self.pool.ask("look", unfinished)
            self.progress.show(self.members, asked)
            activities = [m.activity or m.process.idle() for m in unfinished]
            waits = all(a if isinstance(a, bool) else a.waits for a in activities)
            if any(m.outcome for m in unfinished) or not waits:
                seen = None
            elif activities != seen:
                seen, since = activities, asked
            elif asked - since >= stall:
                return "stalled"

    def outcomes(self, how: str) -> list[Outcome]:
        """Return how every rank's part ended or stands, once `watch` has said `how` the call ended."""
        self.pool.ask("where", [m for m in self.members if how != "failed" or not m.outcome])
        return [m.ended() for m in self.members]

    def interrupt(self) -> list[str]:
        """Raise KeyboardInterrupt on the ranks that have not finished; returns paragraphs on where they stood."""
        stuck = [m for m in self.members if not m.outcome]
        self.pool.ask("where", stuck)
        self.pool.interrupt(stuck)
        self.pool.pump(lambda: all(m.outcome for m in stuck), GRACE_S)
        return paragraphs([m.unfinished() for m in stuck])

    def values(self) -> PerRank:
        """Return the values that came back.

        Raises:
            RankError: If a value does not unpickle in the kernel.
        """
        values = {}
        for member in self.members:
            if member.outcome and member.outcome.kind == "ok":
                try:
                    values[member.rank] = wire.unpack(member.value)
                except Exception as error:
                    what = f"it does not unpickle in the kernel ({type(error).__name__}: {error})"
                    member.outcome = Outcome(member.rank, "unpicklable", message=what)
            member.value = None
        if len(values) < len(self.members):
            raise RankError(
                "the call ran, but a result could not come back",
                [m.outcome or m.unfinished() for m in self.members],
                "The ranks are still up.",
                ended="not returned",
            )
        return PerRank(values)
