"""Comparisons: medians and intervals, and the findings in the titles."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from labkit.timing import Verdict
from labkit.views import ratios, timings


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


def verdict(a="C", b="B", ratio=0.5, low=0.4, high=0.6, n=30):
    return Verdict(a, b, ratio, low, high, n)


def test_ratios_say_the_outcome_in_words():
    open_end = verdict("D", "A", 1.1, -math.inf, math.inf, 3)
    figure = ratios([verdict(), verdict("B", "A", 1.5, 1.2, 1.8), verdict("E", "C", 1.0, 0.9, 1.1), open_end])
    ax = figure.axes[-1]
    assert names(ax) == ["C against B", "B against A", "E against C", "D against A"]
    assert [t.get_text() for t in ax.texts] == [
        "C is faster: 0.50× the time of B (n=30)",
        "B is slower: 1.50× the time of A (n=30)",
        "cannot tell (1.00× the time, n=30)",
        "cannot tell (1.10× the time, n=3)",
    ]
    drawn = [line.get_xdata() for line in ax.lines if line.get_gid() == "interval"]
    assert list(drawn[0]) == [0.4, 0.6]
    assert tuple(drawn[3]) == pytest.approx(ax.get_xlim())  # an interval without an end reaches the edges
    assert words(figure)[:2] == [
        "C is faster than B: it takes 0.50 times as long",
        "2 of 4 comparisons are clear, the others cannot tell",
    ]
    assert "99% interval" in ax.get_xlabel()


def test_verdicts_taken_on_different_links_have_a_panel_each():
    taken = [replace(verdict(ratio=r), evidence=e) for e, r in (("host only", 0.5), ("shm · cpu", 0.4))]
    figure = ratios(taken)
    assert {"host only", "shm · cpu"} <= set(words(figure)) and words(figure)[0].endswith("(host only)")
    assert [names(ax) for ax in figure.axes if names(ax)] == [["C against B"]] * 2


def test_ratios_of_no_comparison_at_all():
    assert "Nothing was compared" in words(ratios([]))


@pytest.mark.parametrize(
    ("draw", "columns", "said"),
    [
        (timings, ["variant", "round", "rank"], "table 'samples' has no column 'seconds'"),
        (ratios, ["a", "b"], "table 'verdicts' has no column 'ratio', 'low'"),
    ],
)
def test_a_missing_column_is_named_with_its_table(draw, columns, said):
    with pytest.raises(ValueError, match=said):
        draw(pd.DataFrame(columns=columns))


def test_an_empty_table_says_so():
    columns = ["variant", "round", "rank", "seconds"]
    assert "No sample was taken" in words(timings(pd.DataFrame(columns=columns)))
