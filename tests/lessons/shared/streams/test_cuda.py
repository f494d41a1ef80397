"""The same program on a GPU, in a recording, or simulated: one kind of timeline, and its label says which."""

from __future__ import annotations

import pytest
import torch

from labkit import hardware
from labkit.lessons.shared.streams import Program, StreamError, Timeline, simulate
from labkit.lessons.shared.streams.cuda import observe, run_on_cuda
from labkit.report import Report

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def overlapping() -> Program:
    p = Program("overlap", streams="side")
    p.kernel("a", 4, writes="x")
    p.record("e")
    p.kernel("b", 6)
    with p.on("side"):
        p.wait("e")
        p.copy("c", 4, reads="x")
    p.synchronize()
    return p


def test_a_recording_is_drawn_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: [])
    path = simulate(overlapping()).report().save(tmp_path)
    found = observe(overlapping(), path)
    assert found.label.startswith("recorded on ") and found.makespan == 10
    assert "there is no GPU here: this is a recording" in found.notes


def test_without_gpu_and_recording_it_is_simulated_and_says_so(monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: [])
    found = observe(overlapping())
    assert (
        found.label == "simulated"
        and found.unit == "units"
        and "no GPU here, and there is no recording" in found.notes[-1]
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_a_clear_error():
    with pytest.raises(StreamError, match="no CUDA device here: simulate"):
        run_on_cuda(overlapping())


def test_what_no_gpu_could_run_is_refused_on_any_machine():
    with pytest.raises(StreamError, match="ms_per_unit must be above 0, got 0"):
        run_on_cuda(overlapping(), 0)
    many = Program("many", streams=[f"s{i}" for i in range(33)])
    with pytest.raises(
        StreamError, match="torch has 32 streams beside the default one, and 33 would share them"
    ):
        run_on_cuda(many)
    flags = Program(streams="side")
    flags.signal("f")
    with pytest.raises(StreamError, match="can only be simulated"):
        run_on_cuda(flags)


def test_flags_are_simulated_also_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: ["a GPU"])
    p = Program("flags", streams="side")
    p.signal("f")
    found = observe(p)
    assert found.label == "simulated" and "a program with flags cannot run on a GPU" in found.notes[-1]


def test_a_timeline_survives_its_report():
    p = overlapping()
    p.kernel("races", 1, on="side", writes="x")
    p.kernel("with it", 1, writes="x")
    found = simulate(p)
    back = Timeline.of_report(Report.from_json(found.report().to_json()))
    assert back.races == found.races and back.unit == found.unit and back.makespan == found.makespan
    assert back.spans.equals(found.spans) and back.path.equals(found.path)
    with pytest.raises(StreamError, match="holds no timeline: it has no table 'spans'"):
        Timeline.of_report(Report("x", "x", "simulated", {}))


@gpu
@pytest.mark.gpu
def test_a_gpu_runs_what_the_simulator_says():
    found, said = run_on_cuda(overlapping(), 2.0), simulate(overlapping())
    assert found.label == "cuda · 1 gpu" and found.unit == "ms"
    times = found.spans.set_index("name")
    # order and overlap, not durations: another program may share the GPU
    assert times.loc["c", "start"] >= times.loc["a", "end"] - 0.1
    assert times.loc["b", "start"] >= times.loc["a", "end"] - 0.1
    assert times.loc["c", "start"] < times.loc["b", "end"] and said.hidden() == 1.0


@gpu
@pytest.mark.gpu
def test_a_wait_for_nothing_does_nothing_on_a_gpu():
    p = Program("never recorded", streams="side")
    p.kernel("a", 10)
    p.wait("e", "side")
    p.kernel("b", 1, on="side")
    times = run_on_cuda(p).spans.set_index("name")
    assert times.loc["b", "start"] < times.loc["a", "end"]


@gpu
@pytest.mark.gpu
def test_flags_are_only_simulated():
    p = Program(streams="side")
    p.signal("f")
    with pytest.raises(StreamError, match="can only be simulated"):
        run_on_cuda(p)
