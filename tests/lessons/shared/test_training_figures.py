"""Memory by route, drawn from known tables."""

from __future__ import annotations

import pandas as pd
import pytest

from course.shared import training_figures as training
from labkit.report import Report


def report(**tables: pd.DataFrame) -> Report:
    return Report("t", "t", "gloo · cpu", tables)


def test_memory_is_that_of_the_rank_that_holds_most():
    sizes = {"parameters": 1000, "gradients": 1000, "Adam's moments": 2000, "peak of a step": 1500}
    rows = [("a", rank, what, size * (1 + rank)) for rank in (0, 1) for what, size in sizes.items()]
    figure = training.figure(report(memory=pd.DataFrame(rows, columns=["route", "rank", "what", "bytes"])))
    assert "a: 8 kB kept, 9 kB at the peak" in figure.summary
    assert figure.summary.startswith("At the peak of a step a rank holds 9 kB with a and with every other")


def test_the_title_compares_peaks_and_not_what_is_kept():
    kept = {"parameters": 1000, "gradients": 1000, "Adam's moments": 2000}
    sizes = {"a": kept | {"peak of a step": 9000}, "b": kept | {"peak of a step": 2000}}
    rows = [(route, 0, what, size) for route, mine in sizes.items() for what, size in mine.items()]
    figure = training.figure(report(memory=pd.DataFrame(rows, columns=["route", "rank", "what", "bytes"])))
    assert figure.summary.startswith("At the peak of a step a rank holds 12 kB with a, 5 kB with b")


def test_what_is_empty_or_unknown_is_said():
    columns = ["route", "rank", "what", "bytes"]
    assert "nothing was measured" in training.figure(report(memory=pd.DataFrame(columns=columns))).summary
    with pytest.raises(ValueError, match="this report has no table 'memory': it has words"):
        training.figure(report(words=pd.DataFrame()))
