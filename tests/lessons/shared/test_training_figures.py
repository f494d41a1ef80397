"""Memory and starts of collectives, drawn from known tables."""

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


def test_starts_are_drawn_for_every_rank_and_counted_before_the_end():
    rows = [("cut", 0, "backward", 0.4), ("cut", 1, "backward", 0.5), ("whole", 0, "backward", 1.1),
            ("whole", 1, "backward", 1.2), ("whole", 0, "forward", float("nan"))]  # fmt: skip
    table = pd.DataFrame(rows, columns=["route", "rank", "phase", "share"])
    figure = training.figure(report(collectives=table))
    assert figure.summary.startswith("Started while products are left: cut 2, whole 0")
    assert "whole: 1 collectives in backward, rank 0 at 110 %" in figure.summary
    assert len(figure.axes[0].lines) == 2 * 2 + 1


def test_what_is_empty_or_unknown_is_said():
    with pytest.raises(ValueError, match="report 't' has no picture: it has words"):
        training.figure(report(words=pd.DataFrame()))
