"""The drill figures and the timelines: what they say for records in which something differs, or nothing does."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest

from course.shared.drill_figures import figure
from course.shared.timelines import timelines
from labkit.report import Report


def report(rows):
    outcomes = pd.DataFrame(rows, columns=["drill", "defence", "outcome"])
    return Report("divergence", "t", "gloo · cpu", {"outcomes": outcomes})


def test_the_matrix_says_who_notices_most():
    drawn = figure(
        report(
            [("a", "none", "wrong"), ("a", "plan", "caught"), ("b", "none", "hung"), ("b", "plan", "hung")]
        )
    )
    assert "No single defence notices every drill. The widest: plan, 1 of 2; all together 1" in drawn.summary
    assert "b: none hung, plan hung" in drawn.summary
    assert "no error; hung; caught: an error that names the difference" in drawn.summary
    assert "other error" not in drawn.summary
    assert "One defence notices all" in figure(report([("a", "plan", "caught")])).summary
    assert "No defence notices any" in figure(report([("a", "none", "wrong")])).summary
    assert "No drill was run" in figure(report([])).summary


def test_rows_stand_by_their_ends_from_the_first_defence_on():
    """The worst above, whatever the order of the drills; equal ones keep it, and a new word is drawn as it is."""
    ends = {"e": "hr", "a": "rr", "b": "hc", "w": "wc", "d": "hc", "new": "xc"}
    words = {"h": "hung", "r": "right", "c": "caught", "w": "wrong", "x": "melted"}
    rows = [
        (name, part, words[how])
        for name, both in ends.items()
        for part, how in zip(("none", "plan"), both, strict=True)
    ]
    ax = figure(report(rows)).axes[-1]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["new", "w", "e", "b", "d", "a"]
    shown = {
        (round(t.get_position()[1] - 0.52), round(t.get_position()[0] - 0.5)): t.get_text() for t in ax.texts
    }
    assert shown[0, 0] == "melted" and shown[1, 0] == "wrong, silent" and shown[2, 1] == "right"
    assert [shown[row, 1] for row in (0, 1, 3, 4)] == ["caught"] * 4


def drawn_notes(wait=2.0):
    rows = [
        ("late", 0, "compute", "layer", 0.0, 0.5),
        ("late", 0, "collective", "all_reduce", 0.5, 0.5 + wait),
        ("late", 1, "compile", "compile", 0.0, wait),
        ("late", 1, "collective", "all_reduce", 0.4 + wait, 0.5 + wait),
    ]
    notes = pd.DataFrame(rows, columns=["drill", "rank", "kind", "what", "begin", "end"])
    ends = pd.DataFrame(
        [("late", rank, 0.5 + wait, "returned") for rank in (0, 1)], columns=["drill", "rank", "at", "said"]
    )
    return notes, ends


def test_a_timeline_says_what_each_rank_did_and_what_did_not_end():
    notes, ends = drawn_notes()
    notes.loc[1, "end"] = None
    said = timelines(notes, ends, "gloo · cpu", "a title").summary
    assert "late, rank 0: layer, all_reduce (not finished); returned after 2.50 s" in said
    assert "late, rank 1: compile, all_reduce; returned after 2.50 s" in said and "a title" in said
    with pytest.raises(ValueError, match="kind"):
        timelines(notes.drop(columns="kind"), ends)


def test_names_of_short_bars_stand_above_them_in_the_order_of_the_calls():
    """However short: each name is drawn once, beside none of its neighbours, and long bars keep theirs inside."""
    rows = [("d", 0, "compute", "layer", 0.0, 1.0)]
    rows += [
        ("d", 0, "collective", f"sum {name}", 1 + i / 1e3, 1 + (i + 1) / 1e3) for i, name in enumerate("qkv")
    ]
    rows += [("d", 1, "compute", "layer", 0.0, 1.0)]
    notes = pd.DataFrame(rows, columns=["drill", "rank", "kind", "what", "begin", "end"])
    ends = pd.DataFrame([("d", 0, 1.1, "a"), ("d", 1, 1.1, "b")], columns=["drill", "rank", "at", "said"])
    drawn = timelines(notes, ends)
    ax = drawn.axes[-1]
    names = [text for text in ax.texts if text.get_text().startswith("sum")]
    assert [text.get_text() for text in names] == ["sum q", "sum k", "sum v"]
    boxes = [text.get_window_extent() for text in names]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
    assert 0 < boxes[0].x0 and boxes[-1].x1 < drawn.bbox.x1
    bars = [patch.get_window_extent() for patch in ax.patches[:4]]
    assert min(box.y0 for box in boxes) > max(bar.y1 for bar in bars), "above the lane, on none of its bars"
    inside = [text.get_window_extent() for text in ax.texts if text.get_text() == "layer"]
    assert len(inside) == 2 and bars[0].y0 < inside[0].y0 < inside[0].y1 < bars[0].y1
