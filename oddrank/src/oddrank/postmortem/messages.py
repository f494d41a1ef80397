"""Messages that one side waits for and the other has not called: a send without its recv, or the reverse."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oddrank.postmortem.calls import Call, Dump
from oddrank.postmortem.differences import Difference, Group

__all__ = ["messages"]

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
            ends = MESSAGE.match(call.op) if call.p2p else None
            members = dump.members.get(call.group, ())
            if not ends:
                continue
            numbers = [int(number) for number in ends.groups() if number]
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
            other = dumps.get(peer)
            mine, theirs = calls.get(rank, []), len(calls.get(peer, []))
            if other and not other.wrapped and peer != rank and len(mine) > theirs and mine[theirs].open:
                present = {rank: mine[theirs]}
                found.append(Difference(group, theirs + 1, present, [peer], [], [[rank]], "missing"))
    return found
