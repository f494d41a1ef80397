"""Shares of a forward, and own runs beside the source's."""

from __future__ import annotations

import pandas as pd
import pytest

from course.cliff.figures import beside_source, breakdown


def words(figure):
    inside = [t.get_text() for ax in figure.axes for t in ax.texts]
    return [t.get_text() for t in figure.texts] + inside


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
        (breakdown, ["variant", "rank", "us"], "table 'breakdown' has no column 'kind'"),
        (lambda t: beside_source(t, source()), ["variant"], "table 'measured' has no column 'frames_per_s'"),
    ],
)
def test_a_missing_column_is_named_with_its_table(draw, columns, said):
    with pytest.raises(ValueError, match=said):
        draw(pd.DataFrame(columns=columns))


def test_an_empty_table_says_so():
    columns = ["variant", "rank", "kind", "us"]
    assert "No forward was recorded" in words(breakdown(pd.DataFrame(columns=columns)))
