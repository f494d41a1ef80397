"""Own runs beside the source's."""

from __future__ import annotations

import pandas as pd
import pytest

from course.cliff.figures import beside_source


def words(figure):
    inside = [t.get_text() for ax in figure.axes for t in ax.texts]
    return [t.get_text() for t in figure.texts] + inside


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


def test_a_missing_column_is_named_with_its_table():
    with pytest.raises(ValueError, match="table 'measured' has no column 'frames_per_s'"):
        beside_source(pd.DataFrame(columns=["variant"]), source())
