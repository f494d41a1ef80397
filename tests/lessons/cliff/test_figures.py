"""The figures of lesson 04."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from course.cliff.figures import over_breaks, over_sizes, ratios, sizes, verdict_table
from labkit.timing.times import Times
from labkit.timing.verdicts import Verdict


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
        ("small", "hidden / eager", 1.4, 1.2, 1.6),
        ("small", "hidden / functional", 0.4, 0.35, 0.45),
        ("large", "hidden / eager", 1.0, 0.9, 1.1),
    ]
    table = pd.DataFrame(rows, columns=["size", "pair", "ratio", "low", "high"])
    figure = over_sizes(table, label="host only")
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["small", "large"]
    assert "large, hidden / eager: 1.00" in figure.summary
    with pytest.raises(ValueError, match="table 'verdicts' has no column 'low'"):
        over_sizes(table.drop(columns="low"))


def compared(ratio, low, high):
    return Verdict("hidden", "functional", ratio, low, high, 20)


def test_a_ratio_has_the_colour_of_its_verdict_and_says_what_cannot_be_told():
    verdicts = [compared(1.4, 1.2, 1.6), compared(0.5, 0.4, 0.6), compared(1.1, 0.9, 1.3)]
    page = verdict_table([(f"row {i}",) for i in range(3)], ("name",), verdicts)
    rows = page.split("<tr>")[2:]
    assert [re.search("background:(#[0-9A-Za-z]+)", row)[1] for row in rows] == [
        "#D55E00",
        "#0072B2",
        "#8a8f94",
    ]
    assert ["cannot tell" in row for row in rows] == [False, False, True]
    assert "1.40 (1.20 to 1.60)" in rows[0] and "row 0" in rows[0] and "<style" not in page


def test_the_readers_sizes_stand_below_the_recorded_ones():
    recorded = [("dim 64, 4 tokens", "B / C", 2.5, 2.2, 2.9), ("dim 1024, 64 tokens", "B / C", 1.1, 1.0, 1.2)]
    recorded += [("dim 64, 4 tokens", "E / C", 1.0, 0.9, 1.1)]
    kept = SimpleNamespace(
        label="recorded on x",
        tables={"sizes": pd.DataFrame(recorded, columns=["size", "pair", "ratio", "low", "high"])},
    )
    times = Times({"eager": [1.0] * 9, "functional": [0.5] * 9, "hidden": [2.0] * 9})
    tried = [SimpleNamespace(values={"size": "64 x 4"}, result=times)]
    (ax,) = sizes(kept, tried).axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["64 x 4, recorded", "64 x 4, mine"]
    figure = sizes(kept)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [
        "64 x 4, recorded",
        "1024 x 64, recorded",
    ]
    assert "E / C" not in figure.summary
    assert list(ratios({"64 x 4": times})["ratio"]) == [2.0, 4.0]
