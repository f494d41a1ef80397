"""The stall limit: tell ranks that wait for each other for ever from ranks that compile or compute for long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.ranks import wire
from labkit.ranks.errors import Ending, Outcome, RankError, paragraphs
from labkit.ranks.live import Live
from labkit.ranks.member import Member
from labkit.ranks.pool import Pool
from labkit.ranks.process import now
from labkit.ranks.standing import Collective

QUIET_S = 2.0  # no rank is asked anything in a call shorter than this
EVERY_S = 1.0


def watch(
    pool: Pool,
    members: Sequence[Member],
    limit: float | None,
    stall: float | None,
    done: Callable[[], bool],
    bad: Callable[[], bool],
    live: Live,
) -> str:
    """Serve the pool until the call is 'done', 'failed', past its 'timeout', or 'stalled'.

    Stalled: for `stall` seconds every rank that has not finished stood in the same collective or store wait.
    """
    began = now()
    deadline = None if limit is None else began + limit
    every = EVERY_S if stall is None else min(EVERY_S, stall / 4)
    first = QUIET_S if stall is None else min(QUIET_S, stall / 4)
    look = None if stall is None and not live.wanted else began + first
    seen: Any = None
    since = began
    while True:
        ends = [at for at in (deadline, look) if at is not None]
        if pool.pump(done, min(ends) - now() if ends else None, stop=bad):
            return "failed" if bad() else "done"
        if deadline is not None and now() >= deadline:
            return "timeout"
        if look is None or now() < look:
            continue
        asked = now()
        look = asked + every
        open_ = [m for m in members if not m.outcome]
        pool.ask("look", open_)
        live.show(members, asked - began)
        glances = {m.rank: m.glance for m in open_ if not m.outcome}
        if len(glances) < len(open_):  # one has just finished
            seen = None
            continue
        if not all(glance is not None and glance.waits for glance in glances.values()):
            seen = None
        elif seen is None or glances != seen:
            seen, since = glances, asked
        elif stall is not None and asked - since >= stall:
            return "stalled"


def explain(
    how: str,
    outcomes: Sequence[Outcome],
    seconds: float,
    limit: float | None,
    patience: float | None,
    after: str,
) -> RankError:
    """The error of a call that 'failed', ran into its 'timeout' or 'stalled'."""
    if how == "failed":
        first = min(outcomes, key=lambda o: (o.order, o.rank))
        error = RankError(
            f"rank {first.rank} failed after {seconds:.2f} s",
            outcomes,
            after,
            ended="died" if first.kind == "dead" else "raised",
        )
        if first.exception:
            try:
                error.__cause__ = wire.loads(first.exception)
            except Exception:
                pass
        return error
    if how == "stalled":
        head = f"stalled: the ranks have waited for each other for {patience:g} s (stall limit), {seconds:.1f} s in all"
        return waiting(head, "stalled", outcomes, after)
    return waiting(f"no end within {limit:g} s (timeout)", "timed out", outcomes, after)


def waiting(head: str, ended: Ending, outcomes: Sequence[Outcome], after: str = "") -> RankError:
    """The error of a call that a limit of time ended, with what its ranks' records say."""
    found = differences(outcomes)
    facts = ["\n".join(map(str, found))]
    facts += paragraphs(outcomes, Outcome.describe_collectives) if ended == "stalled" else []
    first = next((one.in_words() for one in found if not one.only_lines), "")
    return RankError(head, outcomes, "\n".join(filter(None, [*facts, after])), ended=ended, difference=first)


@dataclass(frozen=True)
class Difference:
    """A collective in which ranks differ; `only_lines`: in nothing but the line that calls it."""

    number: int
    group: str
    calls: dict[int, Collective | None]
    only_lines: bool = False

    def said(self) -> dict[int, str]:
        """What each rank called."""
        return {rank: c.describe() if c else "never called it" for rank, c in self.calls.items()}

    def in_words(self) -> str:
        """On one line: 'at collective 3: rank 0 all_reduce, rank 1 never called it'."""
        said = ", ".join(f"rank {rank} {what}" for rank, what in self.said().items())
        return f"at collective {self.number}{self._of}: {said}"

    @property
    def _of(self) -> str:
        return "" if self.group == "0" else f" of group {self.group}"

    def __str__(self) -> str:
        width = max(len(str(rank)) for rank in self.calls)
        head = "Called from different lines since" if self.only_lines else "First difference, at"
        lines = (f"    rank {rank:<{width}}  {what}" for rank, what in self.said().items())
        return "\n".join([f"{head} collective {self.number}{self._of}:", *lines])


def differences(outcomes: Sequence[Outcome]) -> list[Difference]:
    """The first collective in which ranks differ, then the first they call from different lines, where there is one."""
    recorded = [o for o in outcomes if o.collectives is not None]
    if len(recorded) < 2:
        return []
    shared = {o.rank: [c for c in o.collectives or () if not c.between_two] for o in recorded}
    calls = {rank: {(c.group, c.number): c for c in found} for rank, found in shared.items()}
    groups = {c.group: None for found in shared.values() for c in found}
    lines: list[Difference] = []
    for group in groups:
        inside = {rank for rank, known in calls.items() if any(g == group for g, _ in known)}
        ranks = sorted(calls if group == "0" else inside)  # every rank is in the first group
        numbers = [[n for g, n in calls[rank] if g == group] for rank in ranks]
        oldest = max((min(ns) for ns in numbers if ns), default=0)  # older ones have left some rank's record
        for number in range(oldest, max(itertools.chain(*numbers), default=-1) + 1):
            here = {rank: calls[rank].get((group, number)) for rank in ranks}
            if len({c and c.signature for c in here.values()}) > 1:
                return [Difference(number, group, here), *lines]
            if not lines and len({c and c.place for c in here.values()}) > 1:
                lines = [Difference(number, group, here, only_lines=True)]
    return lines
