"""Comparisons: medians, intervals, shares and the source's runs, and the findings in the titles."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from labkit.lessons.cliff.figures import beside_source, breakdown
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
    assert names(ax) == ["B  compiled, disabled", "C  compiled, functional"]
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


def shares(**kinds: float) -> pd.DataFrame:
    rows = [("B", rank, kind, us) for rank in (0, 1) for kind, us in kinds.items()]
    return pd.DataFrame(rows, columns=["variant", "rank", "kind", "us"])


def test_breakdown_stacks_to_a_hundred_percent_of_each_rank():
    figure = breakdown(shares(compute=2_000.0, entry=5_000.0, lookup=1_000.0))
    ax = figure.axes[-1]
    widths = {p.get_gid(): p.get_width() for p in ax.patches}
    assert widths["compute B rank 0"] == pytest.approx(25)
    assert sum(width for gid, width in widths.items() if gid.endswith("rank 1")) == pytest.approx(100)
    said = words(figure)
    assert said[0] == "Time that is neither compute nor communication: B 75%"
    assert said.count("of 8 ms") == 2


def test_breakdown_averages_forwards():
    several = pd.concat([shares(compute=us).assign(forward=i) for i, us in enumerate((1_000.0, 3_000.0))])
    assert words(breakdown(several)).count("of 2 ms") == 2


def test_a_kind_without_a_colour_is_refused():
    with pytest.raises(ValueError, match="table 'breakdown' has kind 'lunch'"):
        breakdown(shares(lunch=1.0))


def source(*rows):
    return pd.DataFrame(rows, columns=["run", "variant", "frames_per_s", "approximate"])


def test_own_runs_and_the_sources_have_axes_of_their_own():
    mine = pd.DataFrame({"variant": ["A", "B", "C"], "frames_per_s": [60.0, 40.0, 80.0]})
    runs = source(
        ("Run 7", "A", 16, "no"), ("baseline", "A", 19.5, "no"), ("Run 8", "B", 10, "yes"), ("Run 12", "C", 25, "no"),
        ("Run 14", "C", None, "no"),
    )  # fmt: skip
    figure = beside_source(mine, runs, here="here: 2 cores", there="the source: 2 GPUs", label="shm · cpu")
    left, right = (next(ax for ax in figure.axes if ax.get_label() == name) for name in ("here", "source"))
    assert [p.get_width() for p in left.patches] == [60, 40, 80]
    assert [p.get_width() for p in right.patches] == [16, 19.5, 10, 25]
    assert left.get_ylim() == right.get_ylim() and left.get_xlim() != right.get_xlim()
    assert "~10  Run 8" in words(figure) and "19.5  baseline" in words(figure)
    assert words(figure)[0] == "C against B, frames per second: 2.00× here, 2.50× in the source"
    assert {"here: 2 cores", "the source: 2 GPUs", "shm · cpu"} <= set(words(figure))


def test_what_the_source_does_not_report_is_said():
    mine = pd.DataFrame({"variant": ["A", "E"], "frames_per_s": [60.0, 40.0]})
    figure = beside_source(mine, source(("Run 7", "A", 16, "no")))
    assert words(figure).count("not reported") == 1
    assert words(figure)[0] == "Own frames per second beside the source's"


@pytest.mark.parametrize(
    ("draw", "columns", "said"),
    [
        (timings, ["variant", "round", "rank"], "table 'samples' has no column 'seconds'"),
        (breakdown, ["variant", "rank", "us"], "table 'breakdown' has no column 'kind'"),
        (ratios, ["a", "b"], "table 'verdicts' has no column 'ratio', 'low'"),
        (lambda t: beside_source(t, source()), ["variant"], "table 'measured' has no column 'frames_per_s'"),
    ],
)
def test_a_missing_column_is_named_with_its_table(draw, columns, said):
    with pytest.raises(ValueError, match=said):
        draw(pd.DataFrame(columns=columns))


@pytest.mark.parametrize(
    ("draw", "columns", "said"),
    [
        (timings, ["variant", "round", "rank", "seconds"], "No sample was taken"),
        (breakdown, ["variant", "rank", "kind", "us"], "No forward was recorded"),
    ],
)
def test_empty_tables_say_so(draw, columns, said):
    assert said in words(draw(pd.DataFrame(columns=columns)))
