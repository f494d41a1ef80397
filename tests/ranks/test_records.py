"""What a flight record says of ranks that wait: which entries have ended, and where two ranks differ."""

from __future__ import annotations

from labkit.ranks.errors import Outcome
from labkit.ranks.stall import differences
from labkit.ranks.standing import Collective, unfinished


def entry(name: str, number: int, retired: bool, p2p: bool = False, group: str = "0") -> dict:
    return {
        "process_group": (group, ""), "is_p2p": p2p, "retired": retired, "profiling_name": f"nccl:{name}",
        "collective_seq_id": 0 if p2p else number, "p2p_seq_id": number if p2p else 0,
    }  # fmt: skip


def test_the_parts_of_a_coalesced_operation_have_ended_when_it_has():
    parts = [entry("send 0->1", 3, False, p2p=True), entry("recv 0<-1", 3, False, p2p=True)]
    assert unfinished([*parts, entry("coalesced", 3, True, p2p=True)]) == []
    assert unfinished([*parts, entry("coalesced", 3, False, p2p=True)])[0] is parts[0]


def test_what_has_another_number_group_or_kind_is_still_awaited():
    waiting = entry("all_reduce", 4, False)
    others = [
        entry("all_reduce", 3, True),
        entry("send", 4, True, p2p=True),
        entry("all_reduce", 4, True, group="7"),
    ]
    assert unfinished([*others, waiting]) == [waiting]


def outcome(rank: int, *calls: Collective) -> Outcome:
    return Outcome(rank, "waited", collectives=list(calls))


def call(op: str, number: int, between_two: bool = False) -> Collective:
    return Collective("0", number, op, ((4,),), ("float32",), "", True, between_two)


def test_messages_are_no_difference_between_ranks():
    sends, receives = call("send 0->1", 1, True), call("recv 1<-0", 1, True)
    same = call("all_reduce", 1)
    assert differences([outcome(0, sends, same), outcome(1, receives, same)]) == ""
    other = differences([outcome(0, sends, same), outcome(1, receives, call("broadcast", 1))])
    assert other.startswith("First difference, at collective 1:") and "rank 1  broadcast" in other
