"""What a flight record says of ranks that wait: which entries have ended, and where two ranks differ."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from oddrank.live.failure import Outcome, differences, explain
from oddrank.live.introspect import Collective, unfinished

from labkit.ranks.output import Printer


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


def test_the_last_collectives_say_their_ranks_where_they_are_of_several_groups():
    def last(*groups):
        calls = [
            Collective(name, 1, "all_reduce", ((4,),), ("float32",), "", True, ranks=those)
            for name, those in groups
        ]
        return Outcome(1, "unfinished", collectives=calls).describe_collectives().splitlines()[1:]

    shards, world = ("1", (1, 2)), ("0", (0, 1, 2))
    assert last(world, world) == ["    1  all_reduce (4,) float32"] * 2
    assert last(shards, world) == [
        "    1  all_reduce (4,) float32, among ranks 1 and 2",
        "    1  all_reduce (4,) float32, among ranks 0 to 2",
    ]
    # two groups of the same ranks are told apart
    assert last(("2", (0, 1, 2)), world) == [
        "    1  all_reduce (4,) float32, among ranks 0 to 2 (group 2)",
        "    1  all_reduce (4,) float32, among ranks 0 to 2 (group 0)",
    ]
    assert last(("1", ()), world)[0] == "    1  all_reduce (4,) float32", "members that are not known"


def test_sizes_of_an_exchange_are_no_difference_between_ranks():
    def exchange(number, rows):
        return Collective("0", number, "all_to_all_single", ((rows, 4),), ("float32",), "", True)

    ended = [exchange(1, 17)], [exchange(1, 47)]
    assert differences([outcome(rank, *calls) for rank, calls in enumerate(ended)]) == []
    (other,) = differences(
        [outcome(0, *ended[0], exchange(2, 32)), outcome(1, *ended[1], call("all_reduce", 2))]
    )
    assert str(other).startswith("First difference, at collective 2:") and "rank 1  all_reduce" in str(other)


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


def test_a_rank_that_has_destroyed_its_group_is_compared_though_it_knows_no_members():
    def loop(count: int, ranks: tuple[int, ...]) -> list[Collective]:
        ops = ("all_reduce", "barrier")
        return [replace(call(ops[n % 2], n), place=f"train.py:{n % 2}", ranks=ranks) for n in range(count)]

    waits, gone = outcome(0, *loop(10, (0, 1))), outcome(1, *loop(9, ()))
    (found,) = differences([waits, gone])
    assert (found.number, found.repeats) == (9, True) and "may be any earlier one" in str(found)
    assert differences([waits, outcome(1, *loop(10, ()))]) == []


@pytest.mark.parametrize(("kind", "ended"), [("dead", "died"), ("error", "raised")])
def test_a_failed_call_says_whether_a_rank_died_or_raised(kind, ended):
    error = explain("failed", [Outcome(0, "error", message="is gone"), Outcome(1, kind)], 1.0, None, None, "")
    assert (error.ended, error.hung, error.difference) == (ended, False, "")


def test_where_calls_repeat_the_one_left_out_may_be_an_earlier_one():
    def loop(rank: int, steps: int) -> Outcome:
        lines = ("In [5]:3", "In [5]:4")
        return outcome(rank, *(replace(call("all_reduce", n), place=lines[n % 2]) for n in range(2 * steps)))

    sentence = "the calls repeat: the one that was left out may be any earlier one"
    (short,) = differences([loop(0, 4), loop(1, 3)])
    assert short.repeats and str(short).endswith(sentence)
    # no loop; and a collective of another kind, which is the cause itself
    (once,) = differences(
        [outcome(0, call("all_reduce", 0), call("barrier", 1)), outcome(1, call("all_reduce", 0))]
    )
    (other,) = differences(
        [outcome(r, *(call("barrier", n) for n in (0, 1)), call(op, 2)) for r, op in enumerate("ab")]
    )
    assert not once.repeats and not other.repeats and sentence not in str(other)


def test_groups_of_one_name_with_other_members_are_not_compared():
    def pair(rank: int, ranks: tuple[int, ...], op: str) -> Outcome:
        return outcome(rank, replace(call(op, 1), group="5", ranks=ranks))

    two = [pair(0, (0, 3), "a"), pair(3, (0, 3), "a"), pair(1, (1, 2), "b"), pair(2, (1, 2), "b")]
    assert differences(two) == []
    (found,) = differences([*two[:3], outcome(2)])
    assert found.calls[2] is None and set(found.calls) == {1, 2}


def test_an_op_has_the_name_that_the_program_called_and_is_compared_by_what_ran():
    sent = replace(call("all_reduce", 1), called="reduce_scatter_tensor")
    assert (
        sent.describe() == "reduce_scatter_tensor (4,) float32"
        and sent.signature == call("all_reduce", 1).signature
    )


def test_errors_that_differ_in_numbers_are_said_once_with_what_is_other():
    def raised(rank: int, text: str) -> Outcome:
        return Outcome(rank, "error", "ValueError", text, [("train.py:4", "step()", False)])

    texts = [
        "lost 3 of 9\nat 2.5",
        "lost 4 of 9\nat 1e-3",
        "lost 4 of 9\nat 1e-3",
        "lost 3 of 9\nat 2.5",
        "late",
    ]
    text = str(explain("failed", [raised(*one) for one in enumerate(texts)], 1.0, None, None, ""))
    assert text.splitlines()[1:7] == [
        "rank 0 (and ranks 1 to 3) raised ValueError: lost 3 of 9",
        "at 2.5",
        "    train.py:4  step()",
        "on rank 1 (and rank 2): lost 4 of 9 (1 more line differs)",
        "rank 4 raised ValueError: late",
        "    train.py:4  step()",
    ]


def test_torchs_own_label_of_a_line_is_dropped(capsys):
    reading, writing = os.pipe()
    os.write(writing, b"[rank1]:W1127 torch says\n[rank1]:   deeper\n[rank2]: another\nof [rank1]: mine\n")
    os.close(writing)
    assert Printer(reading, 1, error=False).drain()
    os.close(reading)
    labelled = ["W1127 torch says", "  deeper", "[rank2]: another", "of [rank1]: mine"]
    assert capsys.readouterr().out.splitlines() == [f"[rank 1] {line}" for line in labelled]
