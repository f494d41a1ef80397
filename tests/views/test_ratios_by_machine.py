"""One experiment on several machines, in one picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.report import Report
from labkit.timing import Verdict
from labkit.views import ratios_by_machine

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob("*/cliff.json"))[-1]


def verdict(a: str, ratio: float, spread: float = 1.1, **where: Any) -> Verdict:
    return Verdict(a, "B", ratio, ratio / spread, ratio * spread, 30, **where)


def report(label: str, *verdicts: Verdict, name: str = "cliff") -> Report:
    return Report(name, "The cliff", label, {}, list(verdicts))


def marks(figure, filled: bool) -> list[float]:
    lines = [
        line for line in figure.axes[0].lines if line.get_marker() in "osD^vPX" and len(line.get_xdata()) == 1
    ]
    return [float(line.get_xdata()[0]) for line in lines if (line.get_markerfacecolor() != "white") == filled]


def test_each_comparison_has_a_mark_for_each_machine_and_only_a_verdict_is_filled():
    figure = ratios_by_machine(
        report("nccl", verdict("C", 0.4), verdict("D", 1.2, spread=2), verdict("D", 3.0, case={"blocks": 8})),
        report("shm · cpu", verdict("C", 0.5, evidence="shm · cpu"), verdict("D", 2.0, evidence="host only")),
    )
    assert sorted(marks(figure, True)) == [0.4, 0.5, 2.0, 3.0] and marks(figure, False) == [1.2]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "C\nagainst B",
        "D\nagainst B",
        "D\nagainst B, blocks=8",
    ]
    assert "D against B: 1.20 (nccl), 2.00 (shm · cpu, host only)" in figure.summary


def test_a_recorded_report_stands_beside_another_one():
    recorded = Report.load(RECORDED)
    other = replace(Report.load(RECORDED), label="recorded on 2x H200, 2026-01-01")
    figure = ratios_by_machine(recorded, other)
    assert recorded.label in figure.summary and other.label in figure.summary
    assert "have the same verdict everywhere" not in figure.texts[0].get_text() or marks(figure, True)


def test_ratios_that_say_nothing_are_left_out():
    nothing = replace(verdict("C", 1.0), ratio=float("inf"), high=float("inf"))
    assert marks(ratios_by_machine(report("nccl", verdict("D", 0.5), nothing)), True) == [0.5]
    assert "No ratio is finite" in ratios_by_machine(report("nccl", nothing)).texts[0].get_text()


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([], "there is nothing to overlay"),
        (
            [report("a", verdict("C", 1)), report("b", verdict("C", 1), name="depth")],
            "these are of cliff, depth",
        ),
        ([report("a")], "the report of 'a' has no verdicts"),
        ([report(str(i), verdict("C", 1)) for i in range(8)], "at most 7 machines"),
    ],
)
def test_what_cannot_be_overlaid_is_refused(reports, words):
    with pytest.raises(ValueError, match=words):
        ratios_by_machine(*reports)
