"""What is different on a GPU: when a call is done, and what a report says of the machine."""

from __future__ import annotations

from course.shared import harness


def test_on_the_cpu_a_settled_call_is_the_call_itself(ranks):
    def same() -> bool:
        return harness.settled(len) is len

    assert list(ranks.run(same).values()) == [True, True]


def test_a_report_of_the_cpu_says_so_on_a_machine_with_gpus():
    from labkit.report import Report

    made = {"hardware": "2x H200", "gpus": ["H200", "H200"], "date": "2026-11-22T10:00:00"}
    on_cpu = Report("x", "x", "gloo · cpu", {}, [], {**made, "device": "cpu"})
    assert on_cpu.recorded().label == "recorded on the CPU beside 2x H200, 2026-11-22"
    assert on_cpu.recorded().recorded().label == on_cpu.recorded().label
    assert (
        Report("x", "x", "nccl", {}, [], {**made, "device": "cuda"})
        .recorded()
        .label.startswith("recorded on 2x")
    )
