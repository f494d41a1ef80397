"""One call: send it to ranks, watch it, and say how it ended on each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from labkit.ranks import cells, stall, wire
from labkit.ranks.errors import Outcome, RankError, paragraphs
from labkit.ranks.live import Live
from labkit.ranks.member import Member
from labkit.ranks.pool import Pool
from labkit.report import PerRank

GRACE_S = 0.5  # after the first failure, how long the other ranks have to report their own


class Call:
    """A request on its way to `members` of a pool. It may take `limit` seconds and stall for `patience`.

    After the first failure the other ranks have `grace` seconds to end by themselves.
    """

    def __init__(
        self,
        pool: Pool,
        members: Sequence[Member],
        number: int,
        limit: float | None,
        patience: float | None,
        live: Live,
        grace: float = GRACE_S,
    ):
        self.pool, self.members, self.number = pool, members, number
        self.limit, self.patience, self.live, self.grace = limit, patience, live, grace
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def send(self, request: tuple[Any, ...]) -> None:
        """Queue the request, with the sources of cells that a rank does not know yet."""
        sources = cells.known_sources()
        framed: dict[frozenset[str], list[Any]] = {}  # ranks that know the same cells share one buffer
        for member in self.members:
            fresh = frozenset(sources.keys() - member.sent)
            if fresh not in framed:
                kind, *parts = request
                framed[fresh] = wire.frame(
                    (kind, self.number, {name: sources[name] for name in fresh}, *parts)
                )
            member.sent |= fresh
            member.begin(self.number)
            member.process.calls.post(framed[fresh])

    def watch(self) -> str:
        """Wait for the end: 'done', 'failed', 'timeout' or 'stalled'."""
        done = lambda: all(m.outcome for m in self.members)  # noqa: E731
        bad = lambda: any(m.outcome and m.outcome.kind in ("error", "dead") for m in self.members)  # noqa: E731
        how = "interrupted"
        try:
            how = stall.watch(self.pool, self.members, self.limit, self.patience, done, bad, self.live)
            if how == "failed":
                self.pool.pump(done, self.grace)
            return how
        finally:
            self.live.end(how, self.seconds)

    def outcomes(self, how: str) -> list[Outcome]:
        """How every rank's part ended or stands, once `watch` has said `how` the call ended."""
        self.pool.ask("where", [m for m in self.members if how != "failed" or not m.outcome])
        return [m.ended() for m in self.members]

    def interrupt(self) -> list[str]:
        """Raise KeyboardInterrupt on the ranks that have not finished; a paragraph on where each of them stood."""
        stuck = [m for m in self.members if not m.outcome]
        self.pool.ask("where", stuck)
        self.pool.interrupt(stuck)
        self.pool.pump(lambda: all(m.outcome for m in stuck), GRACE_S)
        return paragraphs([m.unfinished() for m in stuck])

    def values(self) -> PerRank:
        """The values that came back. Raises RankError when one of them cannot be had in the kernel."""
        outcomes, values = [], {}
        for member in self.members:
            if member.value is not None:
                try:
                    values[member.rank] = member.value.unpack()
                except Exception as error:
                    what = f"it does not unpickle in the kernel ({type(error).__name__}: {error})"
                    member.outcome = Outcome(member.rank, "unpicklable", message=what)
            outcomes.append(member.outcome or member.unfinished())
            member.value = None
        if len(values) < len(self.members):
            raise RankError(
                "the call ran, but a result could not come back",
                outcomes,
                "The ranks are still up.",
                ended="not returned",
            )
        return PerRank(values)
