"""The stall limit: tell ranks that wait for each other for ever from ranks that compile or compute for long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from labkit.ranks import wire
from labkit.ranks.errors import Outcome, RankError, paragraphs
from labkit.ranks.live import Live
from labkit.ranks.member import Member
from labkit.ranks.pool import Pool
from labkit.ranks.process import now

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
        error = RankError(f"rank {first.rank} failed after {seconds:.2f} s", list(outcomes), after)
        if first.exception:
            try:
                error.__cause__ = wire.loads(first.exception)
            except Exception:
                pass
        return error
    facts = paragraphs(outcomes, Outcome.describe_collectives) if how == "stalled" else []
    if difference := differences(outcomes):
        facts.insert(0, difference)
    if how == "stalled":
        head = f"stalled: the ranks have waited for each other for {patience:g} s (stall limit), {seconds:.1f} s in all"
    else:
        head = f"no end within {limit:g} s (timeout)"
    return RankError(head, list(outcomes), "\n".join([*facts, after]))


def differences(outcomes: Sequence[Outcome]) -> str:
    """The first collective in which ranks differ, a line for each rank; '' when their records agree or say nothing."""
    recorded = [o for o in outcomes if o.collectives is not None]
    if len(recorded) < 2:
        return ""
    shared = {o.rank: [c for c in o.collectives or () if not c.between_two] for o in recorded}
    calls = {rank: {(c.group, c.number): c for c in found} for rank, found in shared.items()}
    groups = {c.group: None for found in shared.values() for c in found}
    lines = ""
    for group in groups:
        inside = {rank for rank, known in calls.items() if any(g == group for g, _ in known)}
        ranks = sorted(calls if group == "0" else inside)  # every rank is in the first group
        numbers = [[n for g, n in calls[rank] if g == group] for rank in ranks]
        oldest = max((min(ns) for ns in numbers if ns), default=0)  # older ones have left some rank's record
        for number in range(oldest, max(itertools.chain(*numbers), default=-1) + 1):
            here = {rank: calls[rank].get((group, number)) for rank in ranks}
            if len({c and c.signature for c in here.values()}) > 1:
                return _difference(f"First difference, at collective {number}{_of(group)}:", here) + lines
            if not lines and len({c and c.place for c in here.values()}) > 1:
                lines = "\n" + _difference(f"Called from different lines since collective {number}:", here)
    return lines.strip("\n")


def _of(group: str) -> str:
    return "" if group == "0" else f" of group {group}"


def _difference(head: str, here: dict[int, Any]) -> str:
    width = max(len(str(rank)) for rank in here)
    said = (
        f"    rank {rank:<{width}}  {c.describe() if c else 'never called it'}" for rank, c in here.items()
    )
    return "\n".join([head, *said])
