"""Counting allocations, in eager and compiled."""

from __future__ import annotations

import pytest
import torch

import labkit
from course.shared.memory import allocations, peak


def test_every_piece_counts_whether_or_not_it_is_kept():
    x = torch.ones(4)
    assert allocations(lambda: x.neg_()) == 0
    assert allocations(lambda: x.neg()) == 1
    assert allocations(lambda: x.neg().neg()) == 2
    assert allocations(lambda: x + 1) > allocations(lambda: x + x) == 1, "a number becomes a tensor"


def test_compiled_code_is_counted_as_it_runs():
    x = torch.ones(4)
    compiled = torch.compile(lambda x: x.neg().exp(), backend="eager")
    compiled(x)
    assert allocations(lambda: compiled(x)) == 2


def test_it_says_so_where_a_profiler_runs_already():
    with labkit.record(), pytest.raises(ValueError, match="a torch profiler is already running"):
        allocations(lambda: None)


def test_an_error_passes_through_and_leaves_no_profiler_behind():
    with pytest.raises(ZeroDivisionError):
        allocations(lambda: 1 / 0)
    assert allocations(lambda: torch.ones(2)) == 1


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
