"""Who waits for whom: the way to the difference that others come of, and circles of ranks in different groups."""

from __future__ import annotations

from collections.abc import Mapping

from oddrank.postmortem.calls import Call, Dump
from oddrank.postmortem.differences import Difference, groups

__all__ = ["crossed", "path"]


def path(found: list[Difference], dumps: Mapping[int, Dump]) -> tuple[list[Difference], bool]:
    """Follow who waits for whom: a rank that has not come to a call may be waiting in another.

    Args:
        found: the differences.
        dumps: the flight records by rank.

    Returns:
        The way to the difference that the others come of, which stands last; and whether it is a circle.
    """
    if not found:
        return [], False
    way = [found[0]]
    while True:
        here = way[-1]
        following = next(
            (d for r in here.absent for d in found if d is not here and _waits(dumps[r], d, r)), None
        )  # fmt: skip
        if following is None or len(here.kinds) > 1:
            return way, False
        if following in way:
            return way[way.index(following) :], True
        way.append(following)


def _waits(dump: Dump, difference: Difference, rank: int) -> bool:
    call = difference.present.get(rank)
    return call is not None and (call.open or dump.ends_with(call))


def crossed(found: list[Difference], dumps: Mapping[int, Dump]) -> list[Difference]:
    """A circle of ranks each of which has made all calls, but has before it an open one for which another is late.

    NCCL's calls return before they have run: ranks that use two groups in different orders have made the same calls in
    each group, and wait all the same.

    Args:
        found: the differences within the groups.
        dumps: the flight records by rank; those of gloo, which marks late what has ended, are left out.

    Returns:
        The circle; empty where there is none.
    """
    where: dict[tuple, dict[int, Call]] = {}  # open calls: by rank
    heads: dict[tuple, dict[int, Call]] = {}  # and those that a rank made first
    by_key = {(g.name, g.desc, g.members): g for g in groups(dumps) if g.members}
    for rank, dump in dumps.items():
        pending = [call for call in dump.calls if call.open and not call.p2p and dump.backend != "gloo"]
        for call in pending:
            key = (call.group, call.desc, dump.members.get(call.group, ()), call.seq)
            where.setdefault(key, {})[rank] = call
            if call is pending[0]:
                heads.setdefault(key, {})[rank] = call
    late = []
    for key, present in heads.items():
        absent = sorted(set(where[key]) - set(present))
        if absent and key[:3] in by_key:
            late.append(Difference(by_key[key[:3]], key[3], present, absent, [], [sorted(present)], "order"))
    for start in late:
        way, circle = path([start, *(d for d in [*late, *found] if d is not start)], dumps)
        if circle:
            return way
    return []
