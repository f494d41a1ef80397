"""The cliff's report through each of its figures."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from course.cliff import figures as cliff


def words(figure):
    inside = [t.get_text() for ax in figure.axes for t in ax.texts]
    return [t.get_text() for t in figure.texts] + inside


@pytest.mark.parametrize("which", ["strip", "counts", "timings", "ratios", "breakdown", "source"])
def test_every_figure_draws_and_is_labelled(report, which):
    figure = cliff.figure(report, which)
    label = next(t.get_text() for t in figure.texts if t.get_gid() == "run-label")
    assert "gloo · cpu" in label
    assert figure.png().startswith(b"\x89PNG")


def test_a_saved_report_draws_with_where_it_was_recorded(report, tmp_path):
    from labkit.report import Report

    loaded = Report.load(report.save(tmp_path))
    for which in ("strip", "timings"):
        labels = [t.get_text() for t in cliff.figure(loaded, which).texts if t.get_gid() == "run-label"]
        assert labels == ["recorded on a test, 2026-11-21"]


def test_the_reports_own_figure_method_finds_the_view(report):
    found = dataclasses.replace(report, view="course.cliff.figures:figure").figure("counts")
    assert words(found)[0].startswith("B runs 4 compiled regions")


def test_strip_shows_b_above_c(report):
    said = words(cliff.figure(report))
    assert said[0] == "The same forward: 4 compiled regions in B, 1 in C"
    assert any(text.startswith("every rank: 4 regions, 4 collectives, 4 breaks") for text in said)
    one = words(cliff.figure(report, "strip", variants=["C"]))
    assert one[0] == "1 compiled region with 4 collectives inside one forward, and no graph break"


def test_counts_stand_beside_the_static_counter_on_one_scale(report):
    figure = cliff.figure(report, "counts")
    panels = {ax.get_label(): ax for ax in figure.axes}
    assert len({ax.get_xlim() for ax in panels.values()}) == 1
    assert [p.get_width() for p in panels["regions"].patches] == [4, 1]  # ranks agree: one bar a variant
    assert [p.get_width() for p in panels["static_breaks"].patches] == [2, 0]
    assert words(figure)[0] == (
        "B runs 4 compiled regions and 4 breaks in every forward; Dynamo's counter says 2"
    )


def test_ranks_that_counted_differently_get_a_bar_each(report):
    counts = report.tables["counts"]
    counts.loc[(counts["variant"] == "B") & (counts["rank"] == 1), "regions"] = 3
    panel = next(ax for ax in cliff.figure(report, "counts").axes if ax.get_label() == "regions")
    assert [t.get_text() for t in panel.texts] == ["4  rank 0", "3  rank 1", "1"]


def test_source_uses_the_slowest_rank_of_each_round(report):
    samples = report.tables["samples"]
    samples.loc[samples["rank"] == 1, "seconds"] *= 2
    panel = next(ax for ax in cliff.figure(report, "source").axes if ax.get_label() == "here")
    rates = [p.get_width() for p in panel.patches]
    assert rates == pytest.approx([1 / 0.0418, 1 / 0.0209], rel=0.01)
    with pytest.raises(ValueError, match="no evidence 'nccl' in table 'samples'"):
        cliff.figure(report, "source", evidence="nccl")


def test_several_numbers_of_blocks_default_to_the_largest(report):
    parts = [report.tables["counts"].assign(blocks=2), report.tables["counts"].assign(blocks=40, regions=99)]
    report.tables["counts"] = pd.concat(parts)
    assert "B runs 99 compiled regions" in words(cliff.figure(report, "counts"))[0]
    assert "B runs 4 compiled regions" in words(cliff.figure(report, "counts", blocks=2))[0]
    with pytest.raises(ValueError, match="no run with 3 blocks in table 'counts': there are 2, 40"):
        cliff.figure(report, "counts", blocks=3)


def test_what_is_not_there_is_named(report):
    with pytest.raises(ValueError, match="no figure 'pie' of this report: there are strip, counts"):
        cliff.figure(report, "pie")
    with pytest.raises(ValueError, match="no variant 'Z' in table 'segments': it has B, C"):
        cliff.figure(report, "strip", variants=["Z"])
    del report.tables["samples"]
    with pytest.raises(ValueError, match="this report has no table 'samples': it has counts"):
        cliff.figure(report, "timings")
    report.tables["counts"] = report.tables["counts"].drop(columns="static_breaks")
    with pytest.raises(ValueError, match="table 'counts' has no column 'static_breaks'"):
        cliff.figure(report, "counts")


def test_breaks_without_compile_ids_are_listed_with_the_tables_counts(report):
    report.tables["breaks"] = report.tables["breaks"].drop(columns="compile_id")
    said = words(cliff.figure(report, "strip"))
    assert "In [3]:8 (forward)" in said and said.count("×2") == 2
