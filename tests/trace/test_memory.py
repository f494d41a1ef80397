"""Counting allocations, in eager and compiled."""

from __future__ import annotations

import pytest
import torch

import labkit
from labkit.trace import allocations


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
