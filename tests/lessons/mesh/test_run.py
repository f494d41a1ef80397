"""Lesson 11 from top to bottom, and what its reports say."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "11_mesh_or_world"
SIZES = ("ROUNDS=8 LIMIT_S=10",)  # no compile under load takes ten seconds

pytestmark = [pytest.mark.slow, pytest.mark.kernel]
OUTCOMES = {  # of each mistake with no defence, with timeouts and with DETAIL
    "world_inside": ("hung", "ended", "ended"),
    "meets_the_plan": ("hung", "ended", "caught"),
    "no_group": ("hung", "ended", "ended"),
    "divisor": ("wrong", "wrong", "wrong"),  # no collective differs
    "joins": ("warned", "warned", "warned"),
    "joins_compiled": ("error", "error", "error"),
    "half_made": ("hung", "ended", "ended"),  # making a group is no collective
    "stays_away": ("hung", "ended", "ended"),  # the others point to rank 0, whoever is missing
}


def test_rank_0_calls_no_collective_of_the_mesh_whatever_it_compiles(run):
    requests, found = run.values["REQUESTS"], run.table("mesh_or_world", "counts")
    assert set(found["on the world"]) == {2 * len(requests) + 1}  # plan and input of each request; stop
    assert list(found["on the mesh"]) == 2 * [0, *2 * [4 * len(requests)]]  # the layers'
    graphs = found.groupby("form")["graphs"].apply(list)
    assert graphs.to_dict() == {"driver": [0, 3, 3], "stage 0": [3, 3, 3]}  # 2 rows; any number from 2; 1 row
    called = f"Every mesh rank called {4 * len(requests)} collectives of the mesh, rank 0 none"
    assert called in run.reports["mesh_or_world"].figure().summary


def test_the_same_counts_get_two_verdicts(run):
    said = run.table("mesh_or_world", "health").query("rank > 0").groupby("form").agg(set)
    assert said.loc["driver", "counts, world"] == {"different"}, "a false alarm"
    assert said.loc["stage 0", "counts, world"] == {"alike"}, "by luck"
    for what, of_all in (
        ("counts, mesh", "alike"),
        ("operations, mesh", "alike"),
        ("operations, world", "different"),
    ):
        assert list(said[what]) == 2 * [{of_all}]


def test_every_form_is_timed_with_and_without_work_of_rank_0(run):
    report, work = run.reports["mesh_or_world"], run.values["OWN_MS"]
    forms = ("outside", "outside, with an answer", "outside, with a late answer")
    rounds = report.tables["samples"].groupby(["variant", "rank"]).size()
    assert set(rounds.index) == {
        (f"{form}, {ms} ms", rank) for form in forms for ms in work for rank in range(3)
    }
    assert set(rounds) == {run.values["ROUNDS"]}
    pairs = [(f"{form}, {ms} ms", f"{form}, {work[0]} ms") for form in forms for ms in work[1:]]
    assert [(verdict.a, verdict.b) for verdict in report.verdicts] == pairs


def test_what_becomes_of_mistakes(run):
    rows = run.table("wrong_group", "outcomes")
    found = rows.groupby("drill")["outcome"].apply(tuple).to_dict()
    assert found == {name: OUTCOMES[name] for name in run.values["MISTAKES"]}
    said = rows.set_index(["drill", "defence"])["said"]
    assert "Detected mismatch" in said["meets_the_plan", "DETAIL"]
    assert "does not belong to the given group" in said["joins", "none"]
    assert "5 hang and 1 is silently wrong; DETAIL catches 1" in run.reports["wrong_group"].figure().summary


def test_detail_refuses_a_right_program_after_a_message_and_lets_two_groups_meet(run):
    said = run.text("detail-messages")
    assert "message_then_sum, none: rank 0 returns [3.0, 3.0]" in said
    (differ,) = re.findall(r"message_then_sum, DETAIL: Detected mismatch.*aspects:(.*)", said)
    assert "Sequence number" in differ and "Tensor shapes" not in differ
    for defence in ("none", "DETAIL"):
        met = rf"everybody_calls, {defence}: rank 0 returns .*'over the mesh': 3.0, 'over the world': 1.0"
        assert re.search(met, said), said
    assert len(re.findall(r"110\.0 +3\.0$", run.text("made"), re.M)) == 2
    assert "IndexError" in run.text("two-ways")  # rank 0 has no group of its mesh


def test_a_ring_of_waits_needs_more_than_one_rank_in_another_order(run):
    ended = re.findall(r"hung|\[2\.0, 2\.0\]", run.text("orders"))
    right = "[2.0, 2.0]"  # in turn, later, and later under DETAIL: no rank, one and two in another order
    assert ended == [right] * 6 + ["hung", right, "hung"]
