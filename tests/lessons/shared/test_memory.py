"""Counting allocations, in eager and compiled."""

from __future__ import annotations

import pytest
import torch

import labkit
from course.shared.memory import allocated, peak


def test_every_piece_counts_whether_or_not_it_is_kept():
    x = torch.ones(4)
    assert allocated(lambda: x.neg_()).pieces == 0
    assert allocated(lambda: x.neg()).pieces == 1
    assert allocated(lambda: x.neg().neg()).pieces == 2
    assert allocated(lambda: x + 1).pieces > allocated(lambda: x + x).pieces == 1, "a number becomes a tensor"


def test_compiled_code_is_counted_as_it_runs():
    x = torch.ones(4)
    compiled = torch.compile(lambda x: x.neg().exp(), backend="eager")
    compiled(x)
    assert allocated(lambda: compiled(x)).pieces == 2


def test_it_says_so_where_a_profiler_runs_already():
    with labkit.record(), pytest.raises(ValueError, match="a torch profiler is already running"):
        allocated(lambda: None)


def test_an_error_passes_through_and_leaves_no_profiler_behind():
    with pytest.raises(ZeroDivisionError):
        allocated(lambda: 1 / 0)
    assert allocated(lambda: torch.ones(2)).pieces == 1


def test_a_peak_is_the_worst_moment_and_not_the_sum():
    x = torch.ones(256)
    assert (
        peak(lambda: [x.neg().sum() for _ in range(8)])
        < 2 * 1024
        < 8 * 1024
        <= peak(lambda: [x.neg() for _ in range(8)])
    )
    before = [x.neg()]
    assert peak(before.clear) == 0, "what was there before and is freed takes nothing"
