"""The calls of all ranks, compared by group: the first at which they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from oddrank.postmortem.calls import Call, Dump
from oddrank.postmortem.sentences import Sentence, rank_names, sentence

__all__ = ["Difference", "Group", "differences", "groups", "likeness"]

# calls in which the ranks' sizes may differ by right
UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv")


@dataclass(slots=True)
class Group:
    """A process group, or the messages of a pair in it: its calls by rank and number.

    `members` is None where the record has none (gloo).
    """

    name: str
    desc: str
    members: tuple[int, ...] | None
    calls: dict[int, dict[int, list[Call]]] = field(default_factory=dict)
    p2p: bool = False  # messages from the first member to the second

    def __str__(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"group {self.name}"


@dataclass(slots=True)
class Difference:
    """The first number of a group at which its ranks differ.

    `present` has the calls of the ranks that made one, `absent` the ranks whose record has none, `unseen` those without
    a record; `kinds` are the ranks by what they called, most first; `what` says what differs: missing, operation, size,
    dtype, or order, where those of `absent` have made the call, too, but later than one that waits.
    """

    group: Group
    seq: int
    present: dict[int, Call]
    absent: list[int]
    unseen: list[int]
    kinds: list[list[int]]
    what: str

    @property
    def odd(self) -> list[int]:
        """The ranks of which the others differ; empty where they are as many on both sides."""
        if len(self.kinds) > 1:
            first, second = len(self.kinds[0]), len(self.kinds[1])
            return (
                [] if first == second else sorted(r for ranks in self.kinds[1:] for r in ranks) + self.absent
            )
        return sorted(self.present) if len(self.absent) > len(self.present) > 0 else self.absent

    @property
    def phrase(self) -> str:
        """Its number and its group in words."""
        return f"{'message' if self.group.p2p else 'collective'} {self.seq} of {self.group}"

    def calls(self) -> list[Sentence]:
        """Who called what: a sentence for each kind of call."""
        kinds = [[self.present[rank] for rank in ranks] for ranks in self.kinds]
        return [
            sentence(f"{rank_names(call.rank for call in calls)}: {calls[0].phrase}", *calls[:3])
            for calls in kinds
        ]


def likeness(calls: list[Call]) -> tuple:
    """What has to be alike on all ranks: name, sizes where they have to be, and dtype."""
    return tuple((call.op, _sizes(call), tuple(sorted(set(call.dtypes)))) for call in calls)


def _sizes(call: Call) -> tuple:
    name = call.op.lower()
    if "all_gather" in name or "allgather" in name:
        return call.outputs  # ranks may give parts of other sizes; all get the same
    if "reduce_scatter" not in name and any(word in name for word in UNEVEN):
        return ()
    return call.inputs


def groups(dumps: Mapping[int, Dump]) -> list[Group]:
    """The groups of all records. Two groups of one name are one only where their members are the same."""
    found: dict[tuple, Group] = {}
    for rank, dump in sorted(dumps.items()):
        for call in dump.calls:
            if call.p2p:
                continue
            members = dump.members.get(call.group)
            if members is not None and rank not in members:
                members = None  # names a group of others: numbers within the group, or a damaged record
            key = (call.group, call.desc, members)
            group = found.get(key) or found.setdefault(key, Group(call.group, call.desc, members))
            group.calls.setdefault(rank, defaultdict(list))[call.seq].append(call)
    return list(found.values())


def differences(dumps: Mapping[int, Dump], world: Iterable[int] = ()) -> list[Difference]:
    """The first difference of each group, the one that was called first at the front.

    Args:
        dumps: the flight records by rank.
        world: all ranks that are known, for a default group whose record names no members.
    """
    found = []
    for group in groups(dumps):
        whole = group.members or (tuple(world) if group.desc == "default_pg" else tuple(group.calls))
        there = [rank for rank in whole if rank in dumps]
        unseen = sorted(set(whole) - set(dumps))
        if difference := _first(group, there, unseen, dumps):
            found.append(difference)
    return sorted(found, key=lambda d: min(call.created for call in d.present.values()))


def _first(group: Group, there: list[int], unseen: list[int], dumps: Mapping[int, Dump]) -> Difference | None:
    numbers = [calls for rank, calls in group.calls.items() if rank in there]
    if not numbers:
        return None
    there = [rank for rank in there if group.calls.get(rank) or not dumps[rank].wrapped]
    begin = max(min(calls) for calls in numbers)
    for seq in sorted({number for calls in numbers for number in calls if number >= begin}):
        made = {rank: group.calls[rank][seq] for rank in there if seq in group.calls.get(rank, ())}
        absent = [rank for rank in there if rank not in made]
        by_kind: dict[tuple, list[int]] = {}
        for rank, calls in made.items():
            by_kind.setdefault(likeness(calls), []).append(rank)
        if made and (absent or len(by_kind) > 1):
            kinds = sorted(by_kind.values(), key=len, reverse=True)
            present = {rank: calls[0] for rank, calls in made.items()}
            return Difference(group, seq, present, absent, unseen, kinds, _what(list(by_kind)))
    return None


def _what(kinds: list[tuple]) -> str:
    if len(kinds) == 1:
        return "missing"
    names = {tuple(one[0] for one in kind) for kind in kinds}
    sizes = {tuple(one[1] for one in kind) for kind in kinds}
    return "operation" if len(names) > 1 else "size" if len(sizes) > 1 else "dtype"
