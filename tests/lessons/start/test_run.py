"""Lesson 00 from top to bottom, and what its cells say."""

from __future__ import annotations

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "00_start_here"
SIZES = (pytest.param("", marks=pytest.mark.guard),)

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_each_rank_has_its_part_and_both_return_what_one_process_does(run):
    said = " ".join(run.text("split-l00").split())
    assert "0 0 [[1.0, 2.0]] [[1.0, -1.0], [2.0, 0.0]] [[5.0, -1.0]]" in said
    assert "1 1 [[3.0, 4.0]] [[-1.0, 1.0], [0.0, 2.0]] [[-3.0, 11.0]]" in said
    assert said.count("[[2.0, 10.0]]") == 4  # of each rank: the layer, and one process
    assert said.count("hello from rank 0") == 1


def test_only_rank_0_breaks_and_both_results_are_right(run):
    assert run.text("cell-10-l00").split("as one process")[1].split() == [*"002", "True", *"111", "True"]
    first, second = run.text("cell-12-l00").split("--- rank 1")
    assert "Graph Count: 2\nGraph Break Count: 1" in first and "builtin operator `print`" in first
    assert "Graph Count: 1\nGraph Break Count: 0" in second


def test_ranks_that_differ_get_wrong_numbers_where_nothing_compares_the_operation(run):
    none, one, detail, sizes, verify = run.text("cell-16-l00").split("--- check: ")[1:]
    assert none.count("[30.0, 30.0, 20.0, 20.0]") == detail.count("[30.0, 30.0, 20.0, 20.0]") == 2
    assert one.count("[30.0]") == 2
    assert "mismatch between collectives" in sizes and "no error" not in sizes
    assert "all_reduce(sum)" in verify and "all_reduce(max)" in verify and "no error" not in verify
