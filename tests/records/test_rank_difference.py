"""Merged records: one clock, and the first difference."""

from __future__ import annotations

import pytest

from labkit.records import Record, merge
from labkit.records.record import TABLES, table


def event(rank: int, kind: str, name: str, start: float, **more) -> dict:
    row = {"rank": rank, "forward": 0, "kind": kind, "name": name, "start_us": start, "end_us": start + 1}
    return {**row, "thread": "main", "depth": 1, "compile_id": "", "place": "", "shapes": "", **more}


def made(rank: int, steps: list[dict], origin: int = 0, digest: str = "aa", reason: str = "") -> Record:
    graph = {"compile_id": "0/0", "name": "f", "place": "m.py:1 (f)", "ops": 3, "collectives": 0, "calls": 1}
    stopped = {"compile_id": "0/0", "kind": "break", "name": "f", "reason": reason, "place": "m.py:2 (f)"}
    stopped |= {"executed": 1, "at_collective": 0, "during": True, "text": ""}
    rows = {name: [] for name in TABLES}
    rows["events"] = [event(rank, "forward", "labkit.forward", 0.0, end_us=100.0), *steps]
    rows["segments"] = [{"rank": rank, "forward": 0, "kind": "python", "start_us": 0.0, "end_us": 100.0}]
    rows["segments"][0] |= {"compile_id": "", "name": ""}
    rows["graphs"] = [{"rank": rank, **graph, "backend_graphs": 1, "code": "", "digest": digest}]
    rows["breaks"] = [{"rank": rank, **stopped}] if reason else []
    return Record({name: table(name, found) for name, found in rows.items()}, origin, "gloo · cpu")


def region(rank: int, start: float) -> dict:
    return event(rank, "region", "f", start, compile_id="0/0", place="m.py:1 (f)")


def call(rank: int, start: float, shapes: str = "", op: str = "c10d::allreduce_") -> dict:
    return event(rank, "collective", op, start, shapes=shapes)


def test_ranks_that_do_the_same_do_not_differ():
    records = [made(rank, [region(rank, 1 + rank), call(rank, 5)]) for rank in range(3)]
    assert merge(records).first_difference() is None


def test_another_spelling_of_the_same_collective_is_no_difference():
    records = [made(0, [call(0, 5)]), made(1, [call(1, 5, op="_c10d_functional::all_reduce_")])]
    assert merge(records).first_difference() is None


def test_a_missing_collective_is_the_first_difference():
    found = merge([made(0, [call(0, 5), call(0, 7)]), made(1, [call(1, 5)])]).first_difference()
    assert (found.forward, found.index, found.steps[1]) == (0, 1, None)
    assert found.steps[0].start_us == 7 and found.steps[0].kind == "collective"
    assert str(found) == "forward 0, step 1: rank 0: collective all_reduce; rank 1: nothing more"


def test_the_odd_rank_out_is_named():
    records = [made(rank, [call(rank, 5, "2x3" if rank != 1 else "3x2")]) for rank in range(4)]
    found = merge(records).first_difference()
    assert found.odd == [1]
    assert str(found) == (
        "forward 0, step 0: rank 0 and 2 and 3: collective all_reduce of 2x3; rank 1: collective all_reduce of 3x2"
    )


def test_another_graph_under_the_same_name_is_a_difference():
    found = merge([made(0, [region(0, 1)]), made(1, [region(1, 1)], digest="bb")]).first_difference()
    assert found.steps[0].kind == "region" and found.odd == [1]
    assert "another graph or other shapes on rank 1" in str(found)


def test_a_break_on_one_rank_is_a_difference():
    one = made(0, [region(0, 1), call(0, 5)])
    other = made(1, [region(1, 1), call(1, 5)], reason="print")
    found = merge([one, other]).first_difference()
    assert found.index == 1
    assert (found.steps[0].kind, str(found.steps[1])) == ("collective", "break print at m.py:2 (f)")


def test_merging_puts_ranks_on_one_clock():
    both = merge([made(0, [call(0, 5)], origin=5_000_000), made(1, [call(1, 5)], origin=2_000_000)])
    starts = both.events[both.events["kind"] == "collective"].set_index("rank")["start_us"]
    assert starts.to_dict() == {0: 3005.0, 1: 5.0} and both.origin_ns == 2_000_000
    assert both.segments.set_index("rank")["end_us"].to_dict() == {0: 3100.0, 1: 100.0}
    assert both.counts["rank"].tolist() == [0, 1] and both.label == "gloo · cpu"


def test_ranks_of_two_machines_share_no_clock():
    records = [made(rank, [call(rank, 5)], origin=(rank + 1) * 10**15) for rank in (0, 1, 2)]
    records[0].clock = records[1].clock = "one"
    records[2].clock = "two"
    both = merge(records)
    starts = both.events[both.events["kind"] == "collective"].set_index("rank")["start_us"]
    assert starts.to_dict() == {0: 5.0, 1: 1e12 + 5.0, 2: 5.0}
    assert both.notes == [
        "these ranks share no clock: the times of each machine begin at its own first event"
    ]


def test_merging_refuses_what_is_not_one_record_a_rank():
    with pytest.raises(ValueError, match="at least one"):
        merge([])
    with pytest.raises(ValueError, match="rank 0 comes twice"):
        merge([made(0, []), made(0, [])])
    with pytest.raises(ValueError, match="got a dict"):
        merge([{}])


def test_notes_say_whose_they_are():
    one, other = made(0, []), made(1, [])
    other.notes.append("missed something")
    assert merge([one, other]).notes == ["rank 1: missed something"]


def test_a_step_in_a_library_is_told_with_the_programs_line_that_follows():
    def steps(rank: int, line: int) -> list[dict]:
        inside = event(
            rank, "region", "helper", 2.0, compile_id="9/0", place="python/contextlib.py:299 (helper)"
        )
        return [inside] * (rank == 0) + [call(rank, 5) | {"place": f"train.py:{line} (main)"}]

    told = str(merge([made(rank, steps(rank, 12 + rank)) for rank in range(2)]).first_difference())
    assert (
        "helper at python/contextlib.py:299 (helper), then collective all_reduce at train.py:12 (main)"
        in told
    )
    assert "rank 1: collective all_reduce at train.py:13 (main)" in told
