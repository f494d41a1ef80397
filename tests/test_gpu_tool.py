"""`make gpu`: what it would run on a machine with GPUs, the folder that it leaves, and its refusal without one."""

from __future__ import annotations

import json

import pytest

from labkit import files, hardware
from labkit.cli import _parser
from ledger.facts import load
from oddrank import machine
from tools import gpu


def test_without_a_gpu_it_refuses_in_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hardware, "gpus", list)
    assert gpu.main([str(tmp_path / "out")]) == 2
    assert "needs an NVIDIA GPU that torch can use" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_step_is_a_command_that_its_program_reads(tmp_path):
    found = gpu.steps(tmp_path)
    assert len({step.name for step in found}) == len(found)
    for step in found:
        program, *arguments = step.command
        if program == "labkit":
            _parser().parse_args(arguments)  # ends the test where it is refused
    lessons = [step.command[2] for step in found if step.command[:2] == ("labkit", "run")]
    assert lessons and set(lessons) <= {*map(files.number, files.lessons())}
    (ledger,) = [step for step in found if step.name == "ledger"]
    facts = {fact.id: fact for fact in load().facts}
    asked = [facts[name] for name in ledger.command if name in facts]
    assert asked and all(fact.needs for fact in asked)


@pytest.mark.parametrize("failing", [None, "tests"])
def test_what_fails_or_runs_out_of_time_stops_nothing_and_is_in_the_summary(
    tmp_path, monkeypatch, failing, capsys
):
    for module in (hardware, machine):  # what is described is read there
        monkeypatch.setattr(module, "gpus", lambda: ["NVIDIA H100"])
    real = []

    def run(step, folder):
        real.append(step.name)
        commands = {"doctor": ("labkit", "--version"), failing: ("labkit", "no-such-command")}
        if step.name in commands:
            return gpu.run(gpu.Step(step.name, commands[step.name]), folder)
        return gpu.Done(step, 0, 1.0, "a | b")

    assert gpu.main([str(tmp_path)], run=run) == (failing is not None)
    assert real == [step.name for step in gpu.steps(tmp_path)]
    said = (tmp_path / "summary.md").read_text()
    assert said.count("| passed |") == len(real) - (failing is not None)
    assert "a \\| b" in said and "labkit" in (tmp_path / "doctor.txt").read_text()
    assert ("| tests | failed: exit status 2 |" in said) == (failing is not None)
    assert json.loads((tmp_path / "machine.json").read_text())["gpus"] == ["NVIDIA H100"]
    assert "send it back" in capsys.readouterr().out


def test_a_step_that_runs_out_of_time_is_ended(tmp_path):
    slow = ("timeit", "-n1", "-r1", "import time; time.sleep(60)")
    done = gpu.run(gpu.Step("slow", slow, seconds=2), tmp_path)
    assert (done.status, done.ended) == (124, "ended: out of time")
