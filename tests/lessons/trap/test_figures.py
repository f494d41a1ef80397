"""The figures of the eager trap: each verdict is a row and in words, and each rung a bar."""

from __future__ import annotations

import pytest

from course.trap import figures
from labkit import files
from labkit.report import Report
from labkit.timing import Times

H100 = "data/recorded/1x-nvidia-h100-80gb-hbm3-2026-11-23/eager_trap.json"


def texts(figure) -> list[str]:
    return [t.get_text() for ax in figure.axes for t in ax.texts] + [t.get_text() for t in figure.texts]


def test_the_recorded_h100_has_a_row_for_each_kind_of_evidence():
    report = Report.load(files.ours(H100))
    figure = figures.figure(report)
    assert figure.png()[:4] == b"\x89PNG"
    assert {"1.08, cannot tell", "3.18, slower"} <= set(texts(figure))
    assert "gloo · 1 gpu: 1.08 (0.87 to 1.40), cannot tell" in figure.summary
    assert "H100, host only" in figures.exposed({"H100": report.verdicts}, "recorded").summary


def test_what_cannot_be_drawn_is_named():
    report = Report("eager_trap", "t", "shm · cpu", {})
    with pytest.raises(ValueError, match="no figure 'strip' of this report: there is exposed"):
        figures.figure(report, "strip")
    with pytest.raises(ValueError, match="no verdict of functional against in place"):
        figures.figure(report)


def test_a_rung_is_what_it_takes_longer_than_the_first_one():
    times = Times(
        {"in place": [1.0] * 8, "copied": [1.2] * 8, "functional": [2.0] * 8}
        | {"in place, inference_mode": [0.5] * 8, "functional, inference_mode": [0.8] * 8},
        "host only",
    )
    extra = figures.added(times, 100_000)
    assert extra["more"].round(3).to_dict() == {
        "copied": 2.0,
        "functional": 10.0,
        "functional, inference_mode": 3.0,
    }
    figure = figures.ladder(times, 100_000)
    assert "cost 10 µs" in figure.summary and "copied: +2 µs" in figure.summary
