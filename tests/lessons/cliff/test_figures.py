"""The figures of lesson 04."""

from __future__ import annotations

import re
from types import SimpleNamespace

from course.cliff.figures import WHOLE, forwards, over_breaks, verdict_table
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


def test_the_bar_of_a_forward_is_orange_where_its_regions_became_more():
    tried = [SimpleNamespace(values={"last_block": n}, result=n) for n in ([9, 9, 9], [11, 25, 25])]
    page = forwards(tried)
    colours = [re.findall("background:(#[0-9A-Za-z]+)", row) for row in page.split("<tr>")[2:]]
    assert colours == [["#0072B2"] * 3, ["#0072B2", "#D55E00", "#D55E00"]]
    assert "width:25px" in page and [WHOLE[2](one.result) for one in tried] == ["yes", "no"]
