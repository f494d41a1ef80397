"""Lesson 08 from top to bottom, and what its report and its cells say."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "08_rank_symmetry"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]
CAUGHT = {  # the drills that each part notices
    "none": set(),
    "parity": {"flag", "op", "grads"},
    "plan": {"shape", "order", "count", "flag"},
    "traced": {"shape", "count", "flag", "merge", "branch"},
    "digests": {"shape", "inputs"},
    "health": {"break"},
    "DETAIL": {"shape"},
}
ALONE = {"right": {"break"}, "wrong": {"shape", "inputs", "order", "op", "grads"}}  # the others hang


def test_each_part_notices_its_own_drills_and_lets_others_through(run):
    found = run.table("divergence", "matrix").set_index("drill")
    drills = set(run.values["DRILLS"])
    caught = {part: set(found.index[found[part] == "caught"]) for part in found}
    assert caught == {part: drills & noticed for part, noticed in CAUGHT.items()}
    for drill, row in found.iterrows():
        alone = next((end for end, those in ALONE.items() if drill in those), "hung")
        # a defence that notices nothing changes nothing; DETAIL's own timeout ends what hangs
        assert set(row) <= {alone, "caught", *["timeout"] * (alone == "hung")}, drill
        assert row["none"] == alone and "timeout" not in set(row.drop("DETAIL")), drill


def test_what_was_said_names_both_values(run):
    said = run.table("divergence", "outcomes").set_index(["drill", "defence"])["said"]
    assert "rank 0 'SUM', rank 1 'MAX'" in said["op", "parity"]
    assert "rank 0 2, rank 1 1" in said["count", "plan"] and "rank 0 in all_reduce" in said["count", "none"]
    assert "Ranks 1 failed to pass monitoredBarrier" in said["count", "DETAIL"]
    assert re.search(r"break, .*graph_break.*: rank 0 \(not set\), rank 1 1", said["break", "health"])
    assert "order: none wrong, parity wrong, plan caught" in run.reports["divergence"].figure().summary


def test_a_break_on_one_rank_ends_the_job_wherever_a_pass_changes_the_calls(run):
    """Harmless without the pass, right without the break, SIGABRT with both; so does a default pass, with gradients."""
    alone = run.text("four")
    right = re.findall(r"finished  (\[\[.*\]\])$", alone, re.M)
    assert (
        len(right) == 3 and len(set(right)) == 1 and re.search(r"True +True +crash .*SIGABRT$", alone, re.M)
    )
    passes = run.text("passes-run")
    calls = re.findall(r"^(\d) +(\w+) +(\S+) +(True|False) +(\d) +(\d)", passes, re.M)
    ends = dict(re.findall(r"^(\d) +(?:.* )?(finished|crash|hung) *$", passes, re.M))
    assert len(calls) == len(ends) >= 5  # not every torch has every pass
    for row, program, setting, gradients, one, other in calls:
        assert (one == other) == (ends[row] == "finished"), (program, setting, gradients)
        assert (one == other) == (setting == "-" and gradients == "False"), (program, setting, gradients)


def test_a_block_with_one_shape_is_wrong_in_silence(run):
    said = run.text("steps")
    right, broken = said.split("break on rank 1: ")
    errors = [
        [float(e) for e in re.findall(r"error (\S+)", part)]
        for part in (right, broken.partition("rank 1:")[0])
    ]
    assert "break on rank None: finished" in right and len(errors[0]) == 8 and max(errors[0]) < 1e-3
    assert broken.startswith("hung") and len(errors[1]) == 4 and not any(error < 1e-3 for error in errors[1])


def test_torchs_reader_finds_nccls_missing_rank_and_fails_on_gloo(run):
    said = run.text("frtrace")
    assert said.startswith("KeyError"), (
        "gloo's dumps can be read by torchfrtrace now: lesson 08, section 5 says no"
    )
    assert "missing ranks: {1}" in said


def test_the_rule_under_torchrun_names_each_difference(run):
    said = dict(line.split(": ", 1) for line in run.text("symmetry-rule").split("\n") if line)
    differ = {name: set(re.findall(r"'([^']+)': \[", line)) for name, line in said.items()}
    assert said["two_gathers"] == said["settings"] == "alike"
    assert differ == {
        "two_gathers": set(),
        "two_gathers, break on rank 1": {"call 1", "call 2"},
        "same_gather, gradients on rank 0": {"call 2", "call 3"},
        "parallel_block, break on rank 1": {"call 6"},
        "settings": set(),
        "settings, Dynamo's of rank 1": {"dynamo.optimize_ddp"},
        "settings, options on rank 1": {"options"},
        "gradients on rank 0": {"requires_grad"},
        "warmup, break on rank 1": {"breaks"},
    }
