"""Comparisons: medians and intervals, and the findings in the titles."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.views import timings


def words(figure):
    inside = [t.get_text() for ax in figure.axes for t in ax.texts]
    return [t.get_text() for t in figure.texts] + inside


def names(ax):
    return [t.get_text() for t in ax.get_yticklabels()]


def samples(**seconds: list[float]) -> pd.DataFrame:
    rows = [(v, i, r, s) for v, mine in seconds.items() for r in (0, 1) for i, s in enumerate(mine)]
    return pd.DataFrame(rows, columns=["variant", "round", "rank", "seconds"])


def test_timings_draw_each_rank_and_state_the_median():
    figure = timings(samples(B=[0.020, 0.019, 0.021], C=[0.010, 0.011, 0.009]), label="shm · cpu")
    ax = figure.axes[-1]
    assert names(ax) == ["B", "C"]
    medians = [
        line.get_xdata()[0] for line in ax.lines if line.get_marker() in "os" and len(line.get_xdata()) == 1
    ]
    assert medians == pytest.approx([20, 20, 10, 10])
    said = words(figure)
    assert "20 ms    50 frames/s" in said and "10 ms    100 frames/s" in said
    assert said[0] == "Shortest median forward: C with 10 ms; longest: B with 20 ms"
    assert "median, rank 0" in said and "median, rank 1" in said and "shm · cpu" in said


def test_rounds_far_out_are_named_instead_of_squeezing_the_rest():
    figure = timings(samples(B=[0.010] * 19 + [1.0]))
    assert figure.axes[-1].get_xlim()[1] < 20
    assert "2 slower rounds lie to the right" in words(figure)


def test_kinds_of_evidence_never_share_an_axis():
    both = pd.concat([samples(B=[0.02]).assign(evidence=e) for e in ("host only", "gloo · cpu")])
    figure = timings(both)
    drawn = [ax for ax in figure.axes if ax.get_xlabel() == "ms per forward"]
    assert len(drawn) == 2
    assert {"host only", "gloo · cpu"} <= set(words(figure))
    assert words(figure)[0].endswith("(gloo · cpu)")


def test_a_missing_column_is_named_with_its_table():
    with pytest.raises(ValueError, match="table 'samples' has no column 'seconds'"):
        timings(pd.DataFrame(columns=["variant", "round", "rank"]))


def test_an_empty_table_says_so():
    columns = ["variant", "round", "rank", "seconds"]
    assert "No sample was taken" in words(timings(pd.DataFrame(columns=columns)))
