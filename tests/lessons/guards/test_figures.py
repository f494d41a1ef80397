"""The figures of lesson 09, from tables that are given."""

from __future__ import annotations

from course.guards import odd_shape_figures
from labkit.report import PerRank


def test_the_lanes_of_the_odd_shape_say_how_each_run_ended():
    def one(ended, end):
        spans = [
            {"kind": "compile", "start": 0.0, "end": 0.1},
            {"kind": "all-reduce", "start": 0.1, "end": end},
        ]
        return {"ended": ended, "spans": spans}

    runs = {
        "timeout 1 s": PerRank({0: one("error: Timed out", 0.6), 1: one("error: closed", 1.6)}),
        "timeout 3 s": PerRank({0: one("right", 1.6), 1: one("right", 1.6)}),
    }
    said = odd_shape_figures.lanes(runs, 1.5, "gloo · cpu").summary
    assert "fails with: timeout 1 s." in said and "sleeps 1.5 s" in said
    assert "timeout 1 s, rank 1: compile, all-reduce; error after 1.60 s" in said
    right = odd_shape_figures.lanes({"timeout 3 s": runs["timeout 3 s"]}, 1.5, "gloo · cpu").summary
    assert "Slow, and right, in each run" in right

    shown = odd_shape_figures.Attempts(runs, 1.5, "gloo · cpu")
    assert shown.text == "timeout 1 s: error | timeout 3 s: right"
    if shown.widget is not None:
        slider, picture, text = shown.widget.children
        before = bytes(picture.value)
        slider.value = "timeout 3 s"
        assert bytes(picture.value) != before and text.value == "timeout 3 s: right"
        shown.close()
