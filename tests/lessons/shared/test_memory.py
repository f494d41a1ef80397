"""The peak of memory, in eager and compiled."""

from __future__ import annotations

import pytest
import torch
from oddrank.record import record

from course.shared.memory import peak


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


def test_compiled_code_is_measured_as_it_runs():
    x = torch.ones(256)
    compiled = torch.compile(lambda x: x.neg().exp(), backend="eager")
    compiled(x)
    assert peak(lambda: x.neg_()) == 0 and peak(lambda: compiled(x)) == peak(lambda: x.neg().exp()) == 2048


def test_it_says_so_where_a_profiler_runs_already():
    with record(), pytest.raises(ValueError, match="a torch profiler is already running"):
        peak(lambda: None)


def test_an_error_passes_through_and_leaves_no_profiler_behind():
    with pytest.raises(ZeroDivisionError):
        peak(lambda: 1 / 0)
    assert peak(lambda: torch.ones(256)) == 1024
