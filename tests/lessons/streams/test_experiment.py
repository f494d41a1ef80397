"""Streams and microbatches side by side: simulated without a GPU and labelled so; measured, with memory, on one."""

from __future__ import annotations

import types

import pytest

import labkit
from course.streams import experiment, microbatch
from labkit import hardware
from labkit.report import Report

ON_CPU = types.SimpleNamespace(device="cpu")


@pytest.mark.parametrize(
    ("run", "needs", "steps"),
    [
        (experiment.run, "streams needs a CUDA GPU", [18, 10, 18]),
        (microbatch.run, "microbatch needs 2 ranks on CUDA GPUs", [29, 20]),
    ],
)
def test_without_a_gpu_the_simulation_says_what_it_is(run, needs, steps, tmp_path):
    report = run(ON_CPU)
    assert report.label == "simulated" and list(report.frame["step"]) == steps
    (note,) = report.notes
    assert note.startswith(needs) and note.endswith("this is its simulation, in units and in matrices")
    assert report.frame["overhead_percent"].iloc[0] == 0 and not report.verdicts
    back = Report.load(report.save(tmp_path))
    assert back.label == "simulated" and back.figure().summary.endswith("[simulated]")


def test_one_round_is_refused():
    with pytest.raises(ValueError, match="rounds must be a whole number of at least 2, got 1"):
        experiment.run(ON_CPU, rounds=1)


def test_a_report_without_its_tables_is_refused():
    report = Report("streams", "x", "simulated", {}, view="course.streams.figures:figure")
    with pytest.raises(ValueError, match="neither a table 'samples' nor a table 'spans'"):
        report.figure()


@pytest.mark.gpu
@pytest.mark.parametrize(("run", "count", "ways"), [(experiment.run, 1, 3), (microbatch.run, 2, 2)])
def test_a_gpu_gives_times_and_memory(run, count, ways):
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    with labkit.Ranks(count, device="cuda", timeout=120, quiet=True) as ranks:
        report = run(ranks, size=512, rounds=3)
        assert report.label == ranks.label
    assert not report.notes and len(report.verdicts) == ways - 1
    assert len(report.frame) == ways and (report.frame[["step", "peak"]] > 0).all(axis=None)
    assert report.provenance["unit"] == "ms" and report.provenance["of_peak"] == "MiB"
    assert set(report.tables["samples"]["rank"]) == set(range(count))
    assert report.figure().summary.endswith(f"[{report.label}]")
