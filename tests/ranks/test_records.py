"""What a flight record says of ranks that wait: which entries have ended, and where two ranks differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.ranks.errors import Outcome, differences, explain
from labkit.ranks.introspect import Collective, unfinished


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
    assert differences([outcome(0, sends, same), outcome(1, receives, same)]) == []
    (other,) = differences([outcome(0, sends, same), outcome(1, receives, call("broadcast", 1))])
    assert str(other).startswith("First difference, at collective 1:") and "rank 1  broadcast" in str(other)


def test_the_error_has_the_first_difference_on_one_line_and_no_other_line_for_one():
    one, elsewhere = call("all_reduce", 0), replace(call("all_reduce", 0), place="In [5]:3")
    kept = [outcome(0, one, call("barrier", 1)), outcome(1, elsewhere)]
    error = explain("timeout", kept, 1.0, 1.0, None, "")
    assert (error.ended, error.hung) == ("timed out", True)
    signature = "barrier (4,) float32"
    assert error.difference == f"at collective 1: rank 0 {signature}, rank 1 never called it"
    assert "Called from different lines since collective 0:" in str(error)
    assert explain("stalled", [outcome(0, one), outcome(1, elsewhere)], 1.0, None, 1.0, "").difference == ""


@pytest.mark.parametrize(("kind", "ended"), [("dead", "died"), ("error", "raised")])
def test_a_failed_call_says_whether_a_rank_died_or_raised(kind, ended):
    error = explain("failed", [Outcome(0, "error", message="is gone"), Outcome(1, kind)], 1.0, None, None, "")
    assert (error.ended, error.hung, error.difference) == (ended, False, "")
