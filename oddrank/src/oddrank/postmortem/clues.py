"""What the records say beside the first difference: a call more or less, another order, caches, graphs, peers."""

from __future__ import annotations

import re

from oddrank.postmortem import differences
from oddrank.postmortem.differences import Difference
from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import Call, Row, own
from oddrank.postmortem.states import Said, State, doing, spell

__all__ = [
    "awaited",
    "beside",
    "by_abort",
    "caches",
    "call",
    "graphs",
    "last_call",
    "likely",
    "lines",
    "named",
    "other_group",
    "place",
    "places",
    "quiet",
    "unlike",
    "watchdogs",
]


def call(call: Call) -> str:
    """A call in words: what, its number, its group and its line."""
    by = f", by {call.by}" if call.by else ""
    return f"{call} number {call.seq} of {call.of}" + (f" at {call.where}" if call.where else "") + by


def place(difference: Difference) -> str:
    """The number of a difference and its group."""
    what = "message" if difference.group.p2p else "collective"
    return f"{what} {difference.seq} of {difference.group}"


def named(ranks: list[int]) -> str:
    """Ranks in words."""
    return f"rank{'s' if len(ranks) != 1 else ''} {spell(ranks)}"


def likely(material: Material, difference: Difference) -> list[Said]:
    """Of two lists that differ: whether one has a call more, or the two calls in the other order."""
    if len(difference.kinds) < 2:
        return []
    mine, theirs = (difference.kinds[1][0], difference.kinds[0][0])
    calls = [difference.group.calls[rank] for rank in (mine, theirs)]
    a, b = (
        [differences.likeness(c[n]) for n in (difference.seq, difference.seq + 1) if n in c] for c in calls
    )
    cites = (difference.present[mine].cite, difference.present[theirs].cite)
    if len(a) > 1 and len(b) > 1 and a == b[::-1]:
        return [Said(f"ranks {mine} and {theirs} make the same two calls in the other order", cites)]
    if len(a) > 1 and a[1] == b[0]:
        return [
            Said(
                f"rank {mine} goes on as rank {theirs} began: it has one call more, or rank {theirs} one less",
                cites,
            )
        ]
    if len(b) > 1 and b[1] == a[0]:
        return [
            Said(
                f"rank {theirs} goes on as rank {mine} began: rank {mine} has one call less, or rank {theirs} one more",
                cites,
            )
        ]
    return []


def last_call(material: Material, difference: Difference, rank: int) -> list[Said]:
    """The last call that the rank made, where it is in another group or before."""
    calls = material.dumps[rank].calls if rank in material.dumps else []
    if not calls or calls[-1] is difference.present.get(rank):
        return []
    return [Said(f"rank {rank}'s last call is {call(calls[-1])}", (calls[-1].cite,))]


def lines(material: Material, difference: Difference) -> list[Said]:
    """Where the odd ranks made like calls before the first difference, but at other lines than the others."""
    calls, odd = difference.group.calls, difference.odd
    others = [rank for rank in calls if rank not in odd]
    found = None
    for seq in range(difference.seq - 1, 0, -1):
        ways = [
            {
                own(calls[rank][seq][0].frames, 9) if seq in calls[rank] else ""
                for rank in side
                if rank in calls
            }
            for side in (odd, others)
        ]
        if any(len(way) != 1 or "" in way for way in ways) or ways[0] == ways[1]:
            break
        found = seq
    if found is None:
        return []
    mine, theirs = (next(calls[r][found][0] for r in side if r in calls) for side in (odd, others))
    text = f"before that, at collective {found} of {difference.group}, the ranks made like calls at different lines:"
    text += f" {named([r for r in odd if r in calls])} at {mine.where}, {named(others)} at {theirs.where}"
    return [Said(text, (mine.cite, theirs.cite))]


def other_group(material: Material, difference: Difference) -> list[Said]:
    """Where a rank that has not come to a call made one in another group, last, and at the same line."""
    for here in difference.present.values():
        for rank in difference.absent:
            calls = material.dumps[rank].calls
            there = calls[-1] if calls else None
            alike = there and here.where and own(there.frames, 9) == own(here.frames, 9)
            if there and alike and there.group != here.group and there.op == here.op:
                text = f"at the line where rank {here.rank} called {here.op} of {here.of}"
                text += f", rank {rank}'s last call is of {there.of}: {call(there)}"
                return [Said(text, (here.cite, there.cite))]
    return []


def caches(material: Material, odd: list[int], others: list[int]) -> list[Said]:
    """Where some ranks took a graph from a cache and the odd ones did not, or the other way round."""
    said = []
    for rank in odd:
        mine = {row.key: row for row in material.of(rank, "hit", "miss")}  # the last one of each compile
        for other in others:
            theirs = {row.key: row for row in material.of(other, "hit", "miss")}
            differ = [key for key in mine if key in theirs and mine[key].kind != theirs[key].kind]
            if differ:
                one, two = mine[differ[0]], theirs[differ[0]]
                words = {"hit": "took its code from a cache", "miss": "did not find it in a cache"}
                text = (
                    f"for compile [{one.key}], rank {rank} {words[one.kind]}, rank {other} {words[two.kind]}"
                )
                said.append(Said(text, (one.cite, two.cite)))
                break
    return said


def graphs(material: Material, odd: list[int], others: list[int]) -> list[Said]:
    """The first compile of which a rank has another graph than the others."""
    for rank in odd:
        mine = {row.text: row for row in material.of(rank, "graph")}
        for other in others:
            for row in material.of(other, "graph"):
                if row.text in mine and mine[row.text].key != row.key:
                    text = f"ranks {rank} and {other} have different graphs of compile [{row.text}]"
                    return [Said(text, (mine[row.text].cite, row.cite))]
    return []


def _other_graph(material: Material, rank: int, ranks: list[int]) -> Said | None:
    """Whether all others have the same graphs, and this rank has another one."""
    held = {r: {row.text: row for row in material.of(r, "graph")} for r in ranks}
    for text, row in held[rank].items():
        others = [held[r].get(text) for r in ranks if r != rank]
        keys = {other.key for other in others if other}
        if len(others) > 1 and all(others) and len(keys) == 1 and row.key not in keys:
            whose = named([r for r in ranks if r != rank])
            said = f"rank {rank} has another graph of compile [{text}] than {whose}, which have the same one"
            return Said(said, (row.cite, *(other.cite for other in others[:2] if other)))
    return None


def unlike(material: Material, way: list[Difference], rank: int) -> Said | None:
    """A rank whose call before this one is at another line than that of all others in the same call."""
    for difference in way:
        if rank not in difference.present:
            continue
        before = {}
        for r, call in difference.present.items():
            earlier = [c for c in material.dumps[r].calls if c.index < call.index]
            before[r] = earlier[-1] if earlier else None
        peers = [call for r, call in before.items() if r != rank and call]
        mine = before[rank]
        ways = {own(c.frames, 9) for c in peers}
        if mine and len(peers) > 1 and len(ways) == 1 and own(mine.frames, 9) not in ways:
            others = named([r for r in before if r != rank])
            text = f"before {place(difference)}, {others} called {peers[0].op} at {peers[0].where}"
            text += f", and rank {rank} called {mine.op} at {mine.where}"
            return Said(text, (mine.cite, peers[0].cite))
    return None


def beside(material: Material, difference: Difference) -> list[Said]:
    """Ranks without a record whose error is at the line of one of the calls that differ."""
    said = []
    for rank in difference.unseen[:64]:
        places = {
            row.where.partition(" < ")[0]: row for row in material.of(rank, "gloo", "watchdog") if row.where
        }
        same = [ranks for ranks in difference.kinds if _line(difference.present[ranks[0]]) in places]
        if len(same) == 1:
            row = places[_line(difference.present[same[0][0]])]
            text = f"rank {rank}, of which there is no record, ended at the line of {named(same[0])}: {row.where}"
            said.append(Said(text, (row.cite,)))
    return said[:8]


def _line(call: Call) -> str:
    return call.where.partition(" < ")[0]


def awaited(material: Material, waits: list[int], by_rank: dict[int, State]) -> Call | None:
    """The call that ranks wait in: an open one, or the last one of all of them, where their errors are at its line."""
    held = {r: [c for c in material.dumps[r].calls if not c.p2p] for r in waits if r in material.dumps}
    if call := next((c for calls in held.values() for c in calls if c.open), None):
        return call
    last = {r: calls[-1] for r, calls in held.items() if calls}
    alike = len({(c.group, c.seq, differences.likeness([c])) for c in last.values()}) == 1
    there = all(c.where and _line(c) in by_rank[r].said.text for r, c in last.items())
    return next(iter(last.values())) if alike and there else None


def places(waits: list[int], by_rank: dict[int, State]) -> dict[str, list[int]]:
    """The lines at which ranks wait, each with its ranks; empty where one of them is not known."""
    places: dict[str, list[int]] = {}
    for rank in waits:
        place = by_rank[rank].said.text.removesuffix(", by a compiled graph").rpartition(" at ")[2]
        if ".py:" not in place.partition(" in ")[0]:
            return {}
        places.setdefault(place, []).append(rank)
    return places


def quiet(
    material: Material, cut: list[int], quiet: list[int], by_rank: dict[int, State]
) -> tuple[Said, list[Said]]:
    """Ranks that lost their connection, and others that left neither an error nor a stack."""
    call_ = awaited(material, cut, by_rank)
    text = f"{named(cut)} lost the connection" + (f" in {call(call_)}" if call_ else "")
    text += f"; how {named(quiet)} ended, nothing here says"
    chain = [Said(f"rank {r}: {by_rank[r].said.text}", by_rank[r].said.evidence) for r in cut[:6]]
    exits = {row.rank: row for row in material.rows if row.kind == "exit"}
    if exits and not set(exits) & set(quiet):
        said = f"{named(quiet)} {'is' if len(quiet) == 1 else 'are'} not in the launcher's table of failures"
        chain.append(
            Said(f"{said}: exit code 0, or another node", tuple(row.cite for row in list(exits.values())[:3]))
        )
    return Said(text, tuple(by_rank[r].said.evidence[0] for r in cut[:3])), chain


def watchdogs(material: Material) -> tuple[list[int], list[Said]]:
    """The ranks whose NCCL watchdog names another call than most under one number, and what each names."""
    named_: dict[int, dict[str, list[Row]]] = {}
    for row in material.rows:
        found = re.search(r"WorkNCCL\(SeqNum=(\d+), (OpType=\w+, NumelIn=\d+, NumelOut=\d+)", row.text)
        if found and row.rank is not None:
            named_.setdefault(int(found[1]), {}).setdefault(found[2], []).append(row)
    for number, calls in sorted(named_.items()):
        if len(calls) > 1:
            sides = sorted(calls.items(), key=lambda side: -len(side[1]))
            tie = len(sides[0][1]) == len(sides[1][1])
            said = []
            for what, rows in sides:
                who = named([row.rank for row in rows if row.rank is not None])
                said.append(Said(f"{who}: {what} as number {number}", tuple(row.cite for row in rows[:3])))
            odd = sides if tie else sides[1:]
            return sorted({r.rank for _, rows in odd for r in rows if r.rank is not None}), said
    return [], []


def by_abort(material: Material, rows: list[Row], ranks: list[int]) -> tuple[list[int], Said, list[Said]]:
    """gloo's abort where a message is larger than its buffer, and no record shows the two calls.

    Returns:
        The rank with another size, if the others' records agree in theirs, else none; the verdict; what led to it.
    """
    aborted = sorted({row.rank for row in rows if row.rank is not None})
    bytes_ = re.search(r"(\d+) vs (\d+)", rows[0].text)
    sent = (
        f" sent {bytes_[1]} bytes where {bytes_[2]} were expected"
        if bytes_
        else " sent more than it expected"
    )
    who = named(aborted) if aborted else "a rank that the text does not name"
    text = f"in one collective the sizes differ: {who} aborted, because a peer{sent}"
    cites = tuple(row.cite for row in rows[:3])
    chain = [said for rank in aborted for said in doing(material, rank, [], 0)]
    for rank in ranks:
        lost = [row for row in material.of(rank, "gloo") if row.where and rank not in aborted]
        if lost:
            chain.append(Said(f"rank {rank} was in the call at {lost[-1].where}", (lost[-1].cite,)))
    held = {rank: dump for rank, dump in material.dumps.items() if dump.calls and rank not in aborted}
    calls = {rank: dump.calls[-1] for rank, dump in held.items()}
    alike = len({(one.group, one.seq, differences.likeness([one])) for one in calls.values()}) == 1
    if len(aborted) == 1 and len(calls) > 1 and alike and {*calls, *aborted} == set(ranks):
        some = next(iter(calls.values()))
        said = f"{named(list(calls))} called {call(some)}, all with this size: rank {aborted[0]}'s is another"
        chain.append(Said(said, tuple(one.cite for one in list(calls.values())[:3])))
        return aborted, Said(text, cites), chain
    alone = [rank for rank in ranks if (told := _other_graph(material, rank, ranks))]
    if len(alone) == 1 and (told := _other_graph(material, alone[0], ranks)):
        return alone, Said(text, cites), [*chain, told]
    chain.append(Said("whether the sender or the receiver has the wrong size, this text does not say"))
    return [], Said(text, cites), chain
