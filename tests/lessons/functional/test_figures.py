"""The pictures of lesson 02: every cell in words, other numbers marked, wrong gradients named."""

from __future__ import annotations

import pandas as pd
import pytest

from course.functional import figures as collectives
from labkit.report import Report

ROWS = [
    ("all_reduce sum", "in place", "yes", 1, "same"),
    ("all_reduce sum", "async, no wait", "no", 2, "other on the first call"),
    ("barrier", "in place", "no", 2, "same"),
    ("all_gather_object", "in place", "fails", 0, "-"),
    ("all_reduce avg", "in place", "refused", 0, "-"),
    ("scatter", "in place", "no / yes", "2 / 1", "same"),
]
COLUMNS = ["collective", "form", "one graph", "graphs", "numbers"]


def report(rows=ROWS) -> Report:
    return Report("collectives", "t", "gloo · cpu", {"summary": pd.DataFrame(rows, columns=COLUMNS)})


def texts(figure) -> list[str]:
    return [t.get_text() for ax in figure.axes for t in ax.texts] + [t.get_text() for t in figure.texts]


def test_every_cell_says_in_words_what_became_of_it():
    shown = texts(collectives.figure(report()))
    for words in ("one graph", "breaks, 2 graphs", "breaks, other numbers", "error while compiling"):
        assert words in shown
    assert "not on this backend" in shown and "ranks differ: no / yes" in shown
    assert "gloo · cpu" in shown


def test_the_title_is_the_finding_and_the_summary_holds_every_cell():
    figure = collectives.figure(report())
    assert "Kept in one graph: in place 1 of 5" in figure.summary
    assert "all_gather_object error while compiling" in figure.summary
    assert collectives.figure(report(), title="Mine").summary.startswith("Mine.")


def test_a_report_without_rows_or_table_is_told_apart():
    assert "there is nothing to draw" in " ".join(texts(collectives.figure(report([]))))
    with pytest.raises(ValueError, match="has no table 'summary': it has other"):
        collectives.figure(Report("c", "t", "gloo · cpu", {"other": pd.DataFrame()}))
    with pytest.raises(ValueError, match="form"):
        collectives.figure(Report("c", "t", "x", {"summary": pd.DataFrame({"collective": ["a"]})}))
