"""The pictures of lesson 02: every cell in words, other numbers marked, wrong gradients named."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.functional import figures as collectives
from labkit.lessons.functional.figures import gradients
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


SLOPES = pd.DataFrame(
    [
        ("finite differences", 0, 22.0), ("finite differences", 1, 22.0), ("in place", 0, 2.0), ("in place", 1, 20.0),
        ("functional", 0, 22.0), ("functional", 1, 22.0), ("max", 0, "refused"), ("max", 1, "refused"),
    ],
    columns=["way", "rank", "gradient"],
)  # fmt: skip


def test_wrong_and_refused_gradients_are_named():
    figure = gradients(SLOPES, label="gloo · cpu")
    assert figure.summary.startswith("Wrong gradients: in place. Refused: max.")
    assert "in place: rank 0 2.0, rank 1 20.0" in figure.summary
    assert texts(figure).count("refused") == 2
    assert figure.axes[0].get_xlabel().startswith("gradient of the whole loss")


def test_right_gradients_are_not_called_wrong():
    right = SLOPES[SLOPES["way"] != "in place"]
    assert gradients(right).summary.startswith("Wrong gradients: none.")


def test_gradients_need_a_truth():
    with pytest.raises(ValueError, match="no way 'finite differences'"):
        gradients(SLOPES[SLOPES["way"] == "in place"])
    with pytest.raises(ValueError, match="rank"):
        gradients(SLOPES.drop(columns="rank"))
