"""The overlap experiment on two ranks: every way is timed, spans lie on one clock, the figure has them all."""

from __future__ import annotations

import pytest

from labkit.lessons.shared.streams_figures import timeline
from labkit.lessons.streams import experiment as overlap
from labkit.report import Report


@pytest.fixture(scope="module")
def report(ranks):
    return overlap.run(ranks, mib=1, late=20, rounds=2, brief=True)


def test_a_size_that_is_none_is_refused():
    for name in ("mib", "late"):
        with pytest.raises(ValueError, match=f"{name} must be a number above 0, got -1"):
            overlap.run(None, **{name: -1})
    with pytest.raises(ValueError, match="rounds must be a whole number of at least 2, got 1"):
        overlap.run(None, rounds=1)


def test_brief_leaves_out_what_takes_long(report):
    assert list(report.frame["way"]) == [way for way in overlap.WAYS if way != overlap.COMPILED]
    assert report.label == "gloo · cpu" and not report.notes


def test_spans_of_both_ranks_are_on_one_clock(report):
    (case,) = dict.fromkeys(report.frame["case"])
    runs = overlap.timelines(report, case)
    assert list(runs) == [overlap.SEQUENCE, overlap.LATE]
    for run in runs.values():
        assert run.ranks == [0, 1] and run.unit == "ms" and not run.simulated
        assert run.spans["start"].min() == 0 and run.makespan < 15_000
    sequence, beside = runs.values()
    assert sequence.hidden() == 0  # it computes only when it has the sum
    assert {"collective", "compute", "synchronize"} <= set(beside.spans["kind"])
    assert "gloo · cpu" in timeline(runs).summary
    with pytest.raises(ValueError, match="case 'x' was not run"):
        overlap.timelines(report, "x")


def test_the_report_is_drawn_here_and_elsewhere(report):
    back = Report.from_json(report.to_json())
    for which in ("ways", "definitions"):
        assert back.figure(which).summary.endswith("[gloo · cpu]")
    with pytest.raises(ValueError, match="no picture 'x'"):
        report.figure("x")


@pytest.mark.slow
def test_a_late_peer_and_the_compiled_way(ranks):
    found = overlap.run(ranks, mib=0.25, late=20, rounds=2)
    assert len(found.frame) == 2 * len(overlap.WAYS) and not found.notes
    late = found.tables["spans"].query("name == 'late'")
    assert set(late["rank"]) == {1} and (late["end"] - late["start"]).min() >= 20
    assert len(found.verdicts) == 8


def test_a_shaped_link_says_why_it_cannot_be(monkeypatch):
    monkeypatch.setattr(
        "labkit.lessons.streams.shaped.shutil.which", lambda tool: None if tool == "tc" else tool
    )
    assert overlap.shaped() == "no shaped link here: tc is missing"
