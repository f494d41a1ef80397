"""Growth over depth: the fit finds what is there, and no word is said that the rounds do not support."""

from __future__ import annotations

import pandas as pd
import pytest

from course.guards import depth


def test_growth_takes_two_depths_and_a_depth_that_is_given_twice_counts_once():
    def row(d, form, i):
        return {
            "rank": 0,
            "depth": d,
            "round": i,
            "form": form,
            "seconds": d / 10,
            "graphs": 1,
            "traced": d,
            "error": 0.0,
        }

    rows = [row(d, form, i) for i in range(2) for d in (1, 1, 2) for form in depth.FORMS]
    report = depth.growth(rows, "gloo · cpu", "inductor")
    assert report.tables["summary"]["n"].tolist() == [2] * 6 and report.frame.empty
    assert "outputs agree" in report.notes[0] and "backend inductor" in report.figure().summary
    with pytest.raises(ValueError, match="two different depths at least, got"):
        depth.growth([row(4, "whole", 0)], "gloo · cpu")


def test_the_fit_finds_the_growth_that_is_there():
    rows = [(d, "whole", r, 0.1 * d**2 * (1 + 0.01 * r)) for d in (1, 2, 4, 8) for r in range(8)]
    found = depth.fit(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])).iloc[0]
    assert found["exponent"] == pytest.approx(2) and found["low"] <= 2 <= found["high"] + 1e-9


def test_one_busy_round_moves_neither_the_line_nor_the_verdict():
    cost = {depth.WHOLE: 0.04, depth.NESTED: 0.04, depth.BLOCKS: 0.0}
    rows = [
        (d, form, r, (0.1 + per * d) * (1 + 0.01 * ((d + r) % 3)) * (5 if r == 3 and d == 4 else 1))
        for d in (1, 2, 4)
        for r in range(9)
        for form, per in cost.items()
    ]
    first = pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])
    line = depth.fit(first).set_index("form").loc[depth.WHOLE]
    assert line["per_block_s"] == pytest.approx(0.04, rel=0.1) and line["first_s"] == pytest.approx(
        0.1, rel=0.1
    )
    told = depth.compare_slopes(first).set_index(["a", "b"])["outcome"]
    assert told.to_dict() == {
        (depth.BLOCKS, depth.WHOLE): "less",
        (depth.NESTED, depth.WHOLE): "cannot tell",
        (depth.BLOCKS, depth.NESTED): "less",
    }
    few = depth.compare_slopes(first[first["round"] < 4])
    assert set(few["outcome"]) == {"cannot tell"}, "below eight rounds no interval has ends"


def test_growth_is_told_from_four_depths_on_and_only_where_all_rounds_agree():
    def first(seconds, depths=(1, 2, 4, 8)):
        rows = [(d, "whole", r, seconds(d, r)) for d in depths for r in range(8)]
        return pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"])

    worse = depth.bends(first(lambda d, r: 0.2 + 0.1 * d**2 * (1 + 0.01 * r)))
    line = depth.bends(first(lambda d, r: 5.0 + 0.1 * d * (1 + 0.3 * ((d + r) % 3))))
    assert worse["outcome"].item() == "worse than a line" and line["outcome"].item() == "cannot tell"
    assert depth.bends(first(lambda d, r: 0.1 * d**2, depths=(1, 2, 4))).empty


@pytest.mark.parametrize(("rounds", "outcome"), [(8, "cannot tell"), (10, "worse than a line")])
def test_three_forms_need_more_rounds_than_one_for_a_word_on_their_growth(rounds, outcome):
    rows = [(d, f, r, 0.1 * d**2) for d in (1, 2, 4, 8) for f in depth.FORMS for r in range(rounds)]
    found = depth.bends(pd.DataFrame(rows, columns=["depth", "form", "round", "seconds"]))
    assert (found["low"] > 0).all() and set(found["outcome"]) == {outcome}
