"""`labkit record all`: what is there is kept, what fails does not cost the rest, and nothing half-written stays."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from course.break_it.experiment import GREEN
from labkit import cli, experiments, hardware, runs
from labkit.experiments.experiment import Experiment
from labkit.report import Report, provenance


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were measured; 'depth' fails."""
    names: list[str] = []
    facts = hardware.describe() | {"commit": "0123456789ab"}
    monkeypatch.setattr(hardware, "describe", lambda: dict(facts))

    def measure(experiment: Experiment, *_: object, **__: object) -> Report:
        name = experiment.name
        names.append(name)
        if name == "depth":
            raise RuntimeError("rank 1 died")
        table = pd.DataFrame({"n": [1], "result": [GREEN]})
        return Report(name, name, "gloo · cpu", {"main": table}, provenance=provenance())

    monkeypatch.setattr(runs, "measure", measure)
    return names


def test_the_second_time_only_what_is_missing_is_measured(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["record", "all", "--into", str(tmp_path)]) == 1
    first = capsys.readouterr()
    assert measured == list(experiments.declared())
    assert "not recorded: depth" in first.err and f"[1/{len(measured)}] {measured[0]} ..." in first.out
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {f"{name}.json" for name in experiments.declared() if name != "depth"}
    measured.clear()
    cli.main(["record", "all", "--into", str(tmp_path)])
    assert measured == ["depth"]
    assert capsys.readouterr().out.count("kept (--again") == len(experiments.declared()) - 1
    cli.main(["record", "cliff", "--into", str(tmp_path), "--again"])
    assert measured == ["depth", "cliff"]


def test_a_red_test_is_saved_and_told(
    measured: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Experiment, "passed", lambda experiment, _: experiment.name != "cliff")
    assert cli.main(["record", "guards", "--into", str(tmp_path)]) == 0
    assert cli.main(["record", "cliff", "--into", str(tmp_path)]) == 1
    assert "saved, with a red test: cliff" in capsys.readouterr().err and (tmp_path / "cliff.json").exists()


@pytest.mark.parametrize(
    ("key", "value"), [("torch", "2.99.0"), ("commit", "fedcba987654"), ("commit", "0123+changes")]
)
def test_another_torch_commit_or_a_changed_tree_is_measured_anew(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    cli.main(["record", "cliff", "--into", str(tmp_path)])
    facts = hardware.describe() | {key: value}
    monkeypatch.setattr(hardware, "describe", lambda: dict(facts))
    cli.main(["record", "cliff", "--into", str(tmp_path)])
    assert measured == ["cliff", "cliff"]


def test_a_recording_of_the_cliff_is_from_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, object]] = []

    class NoRanks:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> NoRanks:
            return self

        def __exit__(self, *_: object) -> None: ...

    def run(ranks: object, **options: object) -> Report:
        asked.append(options)
        return Report("cliff", "", "shm", {"main": pd.DataFrame({"n": [1]})}, provenance=provenance())

    monkeypatch.setattr("labkit.ranks.Ranks", NoRanks)
    monkeypatch.setattr("course.cliff.experiment.run", run)
    cli.main(["record", "cliff", "--into", str(tmp_path)])
    cli.main(["record", "cliff", "--into", str(tmp_path), "--again", "--blocks", "8"])
    cli.main(["run", "cliff"])
    new = {"talk": True, "cold": True, "regional": True}
    assert asked[:2] == [new, {**new, "blocks": 8}] and "cold" not in asked[2]
