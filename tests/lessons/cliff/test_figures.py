"""The figures of lesson 04."""

from __future__ import annotations

import pandas as pd
import pytest

from course.cliff.figures import over_breaks, over_sizes


def words(figure):
    return [t.get_text() for t in figure.texts]


def test_the_line_goes_through_the_fitted_points_and_its_slope_is_the_title():
    milliseconds = {0: [2.0, 2.0], 10: [3.0, 3.0], 20: [4.1, 4.3]}
    figure = over_breaks(milliseconds, (0.1, 2.0), [0, 10], label="host only")
    (ax,) = figure.axes
    assert words(figure)[0] == "A forward takes 100 us more for each of these breaks"
    assert list(ax.lines[0].get_ydata()) == [2.0, 4.0]
    assert "20 breaks: 4.2 ms" in figure.summary and "host only" in words(figure)
    blue, orange = ax.lines[2].get_color(), ax.lines[-1].get_color()
    assert blue != orange


def test_each_size_has_its_ratios_and_intervals():
    rows = [
        ("small", "B / A", 1.4, 1.2, 1.6),
        ("small", "C / B", 0.4, 0.35, 0.45),
        ("large", "B / A", 1.0, 0.9, 1.1),
    ]
    table = pd.DataFrame(rows, columns=["size", "pair", "ratio", "low", "high"])
    figure = over_sizes(table, label="host only")
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["small", "large"]
    assert "large, B / A: 1.00" in figure.summary
    with pytest.raises(ValueError, match="table 'verdicts' has no column 'low'"):
        over_sizes(table.drop(columns="low"))
