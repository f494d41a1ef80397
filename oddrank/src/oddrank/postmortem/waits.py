"""Waits that no group shows alone: for a message, and of groups that the ranks use in different orders."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oddrank.postmortem import differences
from oddrank.postmortem.differences import Difference, Group
from oddrank.postmortem.rows import Call, Dump

__all__ = ["crossed", "messages"]

MESSAGE = re.compile(r"(?:send (\d{1,6})->(\d{1,6})|recv (\d{1,6})<-(\d{1,6}))$")


def messages(dumps: Mapping[int, Dump]) -> list[Difference]:
    """The first message of each pair of ranks that one side waits for and the other has not called.

    Messages have no number that both sides share: the nth `send` of a pair in a group belongs to its nth `recv`. So a
    record that has lost its oldest calls is left out, and gloo's, which does not say whether a message has ended.

    Args:
        dumps: the flight records by rank.
    """
    sides: dict[tuple, dict[int, list[Call]]] = {}
    groups: dict[tuple, Group] = {}
    for rank, dump in sorted(dumps.items()):
        if dump.wrapped or dump.backend == "gloo":
            continue
        for call in dump.calls:
            named = MESSAGE.match(call.op) if call.p2p else None
            members = dump.members.get(call.group, ())
            if not named:
                continue
            numbers = [int(number) for number in named.groups() if number]
            pair = numbers if call.op.startswith("send") else numbers[::-1]
            if max(pair) >= len(members) or rank not in (members[pair[0]], members[pair[1]]):
                continue
            src, to = members[pair[0]], members[pair[1]]
            key = (call.group, call.desc, members, src, to)
            sides.setdefault(key, {}).setdefault(rank, []).append(call)
            groups.setdefault(
                key, Group(call.group, f"{call.of} from rank {src} to rank {to}", (src, to), p2p=True)
            )
    found: list[Difference] = []
    for key, calls in sides.items():
        group, (src, to) = groups[key], key[3:]
        group.calls = {r: {n: [one] for n, one in enumerate(those, 1)} for r, those in calls.items()}
        for rank, peer in ((src, to), (to, src)):
            held = dumps.get(peer)
            mine, theirs = calls.get(rank, []), len(calls.get(peer, []))
            if held and not held.wrapped and peer != rank and len(mine) > theirs and mine[theirs].open:
                present = {rank: mine[theirs]}
                found.append(Difference(group, theirs + 1, present, [peer], [], [[rank]], "missing"))
    return found


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
    groups = {(g.name, g.desc, g.members): g for g in differences.groups(dumps) if g.members}
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
        if absent and key[:3] in groups:
            late.append(Difference(groups[key[:3]], key[3], present, absent, [], [sorted(present)], "order"))
    for start in late:
        way, circle = differences.root([start, *(d for d in [*late, *found] if d is not start)], dumps)
        if circle:
            return way
    return []
