"""The figures of lesson 09, from tables that are given."""

from __future__ import annotations

from course.guards import odd_shape_figures
from labkit.report import PerRank


def test_the_lanes_of_the_odd_shape_say_how_each_run_ended():
    def one(ended, end, compiles):
        spans = [{"kind": "compile", "start": 0.0, "end": 0.1}] * compiles
        return {"ended": ended, "spans": [*spans, {"kind": "all-reduce", "start": 0.1, "end": end}]}

    runs = {
        "timeout 1 s": PerRank({0: one("error: Timed out", 0.6, 1), 1: one("error: closed", 1.6, 2)}),
        "timeout 3 s": PerRank({0: one("right", 1.6, 1), 1: one("right", 1.6, 2)}),
        "timeout 4 s": PerRank({0: one("right", 1.6, 2), 1: one("right", 1.6, 1)}),
        "guard collectives": PerRank({0: one("right", 1.6, 2), 1: one("right", 1.6, 2)}),
    }
    said = odd_shape_figures.lanes(runs, 1.5, "gloo · cpu").summary
    assert "compiles: an error with timeout 1 s; slow, and right, with timeout 3 s and timeout 4 s; " in said
    assert "no such wait with guard collectives." in said and "a sleep of 1.5 s" in said
    assert "timeout 1 s, rank 1: compile, compile, all-reduce 1; error after 1.60 s" in said

    shown = odd_shape_figures.Attempts(runs, 1.5, "gloo · cpu")
    assert repr(shown) == said
    _, slider, picture = shown.widget().children
    before = picture.value
    slider.value = "timeout 3 s"
    assert picture.value != before and "slow, and right, with timeout 3 s" in picture.value
