"""How ranks that torchrun has started ended, left in its store: what each raised, or where torchrun ended it."""

from __future__ import annotations

import json
from typing import Protocol

from labkit.ranks import Outcome, RankError
from labkit.ranks.introspect import Inspector

__all__ = ["failure", "leave", "stand"]


class _Post(Protocol):
    def leave(self, name: str, text: str) -> None: ...

    def take(self, name: str, wait: float = 0.0) -> str | None: ...


def stand(rank: int) -> Outcome:
    """Return where the main thread of this process stands; called from another thread."""
    now = Inspector(lambda: True).where()
    return Outcome(rank, "unfinished", "", "", now.frames, waits=now.waits, compiling=now.compiling)


def leave(post: _Post, outcome: Outcome) -> None:
    """Leave for rank 0 how this rank ended."""
    said = ("kind", "type", "message", "frames", "waits", "compiling")
    post.leave(f"ended-{outcome.rank}", json.dumps({name: getattr(outcome, name) for name in said}))


def failure(post: _Post, world_size: int, head: str) -> str:
    """Say how the ranks ended, the cause first.

    Args:
        post: Where they left it.
        world_size: Number of ranks.
        head: What is known otherwise.

    Returns:
        Where a rank raised: it, its lines, and where the others stood. Otherwise `head`, with what ranks have left.
    """
    found = []
    for rank in range(world_size):
        if (text := post.take(f"ended-{rank}")) is not None:
            told = json.loads(text)
            told["frames"] = [(where, line, bool(library)) for where, line, library in told["frames"]]
            found.append(Outcome(rank, **told))
    raised = sorted((one for one in found if one.kind == "error"), key=lambda one: (one.order, one.rank))
    head = f"rank {raised[0].rank} failed" if raised else head
    return str(RankError(head, found, ended="raised")) if head and found else head
