"""Where an experiment runs: what is written for the CPU says so, and a recording goes on behind a refusal."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course.shared import harness
from labkit import cli, experiments, hardware

ON_GPU = SimpleNamespace(device="cuda", backend="gloo", world_size=3, threads=1, label="gloo · 1 gpu")
FOR_CPU = [name for name in experiments.declared() if experiments.get(name).device == "cpu"]


def test_what_starts_ranks_of_its_own_or_makes_tensors_on_the_cpu_is_named():
    assert {"divergence", "guards", "depth", "odd_shape", "mesh_or_world", "wrong_group", "cold"} <= set(
        FOR_CPU
    )


@pytest.mark.parametrize(
    "name", [name for name in FOR_CPU if name != "survival"]
)  # whose ranks are always its own
def test_an_experiment_for_the_cpu_refuses_other_ranks(name):
    with pytest.raises(ValueError, match=r"written for the CPU.*on cuda: give it Ranks\(3, device='cpu'\)"):
        experiments.get(name).run(ON_GPU)


@pytest.mark.parametrize("name", ["divergence", "odd_shape"])
def test_where_one_rank_differs_there_have_to_be_others(name):
    with pytest.raises(
        ValueError, match="one rank differs from the others here: give at least 2 ranks, got 1"
    ):
        experiments.get(name).run(SimpleNamespace(device="cpu", world_size=1))


@pytest.fixture
def measured(monkeypatch):
    """On a machine that seems to have two GPUs: the devices on which experiments were begun, none of which runs."""
    seen: dict[str, tuple[str, str]] = {}

    class Began(ValueError):
        pass

    def begin(count, device, backend, **_):
        seen[str(len(seen))] = (device, backend)
        raise Began("this is no machine for it")

    monkeypatch.setattr(hardware, "gpus", lambda: ["a GPU", "a GPU"])
    monkeypatch.setattr("labkit.ranks.Ranks", begin)
    return seen


def test_a_recording_takes_each_experiment_where_it_belongs_and_goes_on_behind_a_refusal(
    measured, tmp_path, capsys
):
    assert cli.main(["record", "all", "--into", str(tmp_path)]) == 1
    devices = dict(zip(experiments.declared(), measured.values(), strict=True))
    assert {name for name, (device, _) in devices.items() if device == "cpu"} == set(FOR_CPU)
    assert devices["cliff"] == ("auto", "auto") and devices["guards"] == ("cpu", "gloo")
    said = capsys.readouterr().err
    assert (
        said.count("this is no machine for it") == len(experiments.declared())
        and "not recorded: cliff" in said
    )
    assert not list(tmp_path.glob("*.running.jsonl"))


def test_of_one_recording_a_refusal_is_an_error_of_the_command(measured, tmp_path):
    assert cli.main(["record", "cliff", "--into", str(tmp_path)]) == 2
    assert len(measured) == 1 and not list(tmp_path.iterdir())


def test_a_device_that_was_asked_for_is_taken(measured, tmp_path):
    assert cli.main(["run", "guards", "--device", "cuda", "--save", str(tmp_path)]) == 2
    assert list(measured.values()) == [("cuda", "auto")]


def test_on_the_cpu_a_settled_call_is_the_call_itself(ranks):
    def same() -> bool:
        return harness.settled(len) is len

    assert list(ranks.run(same)) == [True, True]


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
