"""Lesson 19 from top to bottom, and what its cells say."""

from __future__ import annotations

import re

import pytest
import torch
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "19_new_torch"
HERE = torch.__version__.partition("+")[0]

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_the_counts_of_facts_agree(run):
    one_release, facts = map(int, re.search(r"(\d+) of (\d+) facts", run.text("new-torch-05")).groups())
    figure = re.search(r"(\d+) of (\d+) facts changed in some release", run.text("new-torch-06"))
    changed, told, somewhere = map(
        int, re.search(r"(\d+) of the (\d+) .*; (\d+) changed", run.text("new-torch-07")).groups()
    )
    assert [*map(int, figure.groups())] == [somewhere, facts]
    assert 0 < one_release < somewhere < facts and 0 < changed <= somewhere and told <= facts
    assert f"measured: {100 * changed / told:.3g} % of the facts" in run.text("new-torch-07")
    # one that changed twice counts twice
    changes = sum(int(line.split()[-1]) for line in run.text("new-torch-31").splitlines() if "->" in line)
    assert changes >= somewhere


def test_where_the_other_torch_is_not_here_what_was_saved_of_it_stands_beside_this_one(run):
    for cell, right in (("new-torch-15", "[2.0, 2.5] where"), ("new-torch-18", "yes: [2.0, 2.5]")):
        here, saved = run.text(cell).strip().splitlines()
        assert here.startswith(f"torch {HERE}: ")
        assert saved.startswith(f"torch 2.15.0: {right}") and "(saved: torch 2.15.0" in saved


def test_a_judge_and_a_release_are_refused_and_passed(run):
    for cell in ("new-torch-23", "new-torch-30"):
        wrong, right = run.text(cell).split("solution\n")
        assert "not yet: " in wrong and "hint: " in wrong and "passed: " in right


def test_this_torch_answers_as_it_was_recorded(run):
    rows = re.findall(r"^(\S+): (.+?) \(.*; recorded: (.+)$", run.text("new-torch-35"), re.MULTILINE)
    assert {name for name, *_ in rows} == {"breaks.disabled-collective", "collectives.gradient-of-an-average"}
    assert all(now == before for _, now, before in rows)
