"""What is different on a GPU: what a report says of the machine."""

from __future__ import annotations


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
