"""Lesson 08 from top to bottom, and what its report and its cells say."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "08_rank_symmetry"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]
ENDED = {  # each drill under no defence, DETAIL and the planned calls
    "nothing": ["right", "right", "right"],
    "a branch": ["ended", "timeout", "caught"],
    "another group": ["ended", "timeout", "caught"],
    "another shape": ["crash", "caught", "caught"],
    "a recompile": ["right", "right", "right"],
}


def test_which_defence_notices_what(run):
    found = run.table("divergence", "matrix").set_index("drill")
    assert {drill: list(row) for drill, row in found.iterrows()} == ENDED
    said = run.table("divergence", "outcomes").set_index(["drill", "defence"])["said"]
    assert "'call 3': ['all_reduce [4] float32 sum model', 'missing']" in said["a branch", "planned"]
    assert (
        "'call 2': ['all_reduce [4] float32 sum model', 'all_reduce [4] float32 sum other']"
        in said["another group", "planned"]
    )
    assert (
        "[5] float32" in said["another shape", "planned"]
        and "shapes: 4vs 5" in said["another shape", "DETAIL"]
    )
    assert "a branch: none ended" in run.reports["divergence"].figure().summary


def test_a_plan_of_fsdp2(run):
    whole, skipped = run.text("fsdp-run").split("limit 0.001:")
    calls = re.findall(r"^ +(\w+) \[\d*\] float32 dp$", whole, re.M)
    assert (
        calls
        == ["_allgather_base"] * 2 + ["allreduce"] + ["_allgather_base"] * 2 + ["_reduce_scatter_base"] * 2
    )
    assert re.findall(r"^ +(\w+) \[", skipped, re.M) == calls[:3], "the branch skips the backward"


def test_torchs_reader_finds_nccls_missing_rank(run):
    assert "missing ranks: {1}" in run.text("frtrace")


def test_the_rule_under_torchrun_names_each_difference(run):
    said = dict(line.split(": ", 1) for line in run.text("symmetry-rule").split("\n") if line)
    differ = {name: set(re.findall(r"'([^']+)': \[", line)) for name, line in said.items()}
    assert said["bucketing"] == said["FSDP2"] == said["parallel block, break on every rank"] == "alike"
    assert {name: those for name, those in differ.items() if those} == {
        "bucketing, break on rank 1": {"call 1", "call 2"},
        "one tensor twice, gradients on rank 0": {"call 2"},
        "parallel block, break on rank 1": {"call 6"},
        "settings, CSE off on rank 1": {"functorch.cse"},
        "settings, options on rank 1": {"options"},
    }
