"""The figures of lesson 09, from tables that are given and from reports that were saved."""

from __future__ import annotations

from course.guards.odd_shape_figures import Attempts
from labkit.report import PerRank


def test_the_lanes_of_the_odd_shape_say_how_each_timeout_ended():
    def one(ended, end):
        spans = [
            {"kind": "compile", "start": 0.0, "end": 0.1},
            {"kind": "all-reduce", "start": 0.1, "end": end},
        ]
        return {"ended": ended, "spans": spans, "dynamic": [False]}

    runs = {
        0.5: PerRank({0: one("error: Timed out", 0.6), 1: one("error: closed", 1.6)}),
        None: PerRank({0: one("right", 1.6), 1: one("right", 1.6)}),
    }
    shown = Attempts(runs, 1.5, "gloo · cpu")
    assert shown.text == "0.5 s error, torch's default right"
    said = shown.figure.summary
    assert (
        "sleeps 1.5 s" in said and "timeout: 0.5 s, rank 1: compile, all-reduce; error after 1.60 s" in said
    )
    assert shown.widget is None or shown.widget.children
    shown.close()
