"""Lesson 01 from top to bottom, and what its cells say."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "01_process_groups"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_who_reports_a_rank_that_does_not_come(run):
    """Without a launcher rank 0 counts and no error names rank 3; under torchrun all three name its key."""
    alone, launched = run.text("cell-12-l01"), run.text("torchrun-l01")
    assert len(re.findall(r"\d/4 clients joined", alone)) == 1 and "cpu//0/3" not in alone
    assert alone.count("keys: /default_pg/0//cpu//0/0") == 2
    assert launched.count("keys: /default_pg/0//cpu//0/3") == 3 and "clients joined" not in launched
    barrier = run.text("cell-14-l01")
    assert re.search(r"rank 0: .*Ranks (1, )?2, 3 failed to pass monitoredBarrier in 1000 ms", barrier)
    assert re.search(r"rank 1: .*check rank 0 logs", barrier)


def test_another_world_size_is_named_by_the_check(run):
    assert "rank 1 was told 3 ranks, rank 0 4" in run.text("cell-18-l01")


def test_groups_in_another_order_exchange_their_members(run):
    assert "sums [3.0, 3.0, 3.0, 3.0]" in run.text("cell-32-l01")


def test_the_sums_are_right_and_a_ring_sends_a_quarter_less_than_doubling(run):
    table = run.text("cell-38-l01")
    sent = {name: float(kib) for name, kib in re.findall(r"^(\w+) +([\d.]+)  True", table, re.M)}
    assert set(sent) == {"ring", "doubling", "gloos"}
    assert 1.5 <= sent["ring"] / run.values["KIB"] < 2 <= sent["doubling"] / run.values["KIB"]
    assert "messages [6, 6, 6, 6], bytes sent [384, 384, 384, 384]" in run.text("cell-69-l01")


def test_the_script_of_the_lesson_names_the_late_rank(run):
    said = run.text("script-run-l01")
    assert "the sum of 2 ranks is 3" in said
    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in said
