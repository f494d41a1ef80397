"""Rough handling of the command line: full disks, readers that leave, other encodings, and what nobody should type."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit import cli, files
from labkit.lessons import execution
from labkit.report import Report

HEAVY = {"torch", "pandas", "matplotlib", "numpy", "sympy"}
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
TYPED_WRONGLY = [
    (["nonsense"], "invalid choice: 'nonsense'"),
    ([], "the following arguments are required: COMMAND"),
    (["list", "x"], "unrecognized arguments: x"),
    (["run"], "give lessons or --all, as in: labkit run 04 BLOCKS=8"),
    (["run", "04", "--all"], "give lessons or --all, not both"),
    (["run", "cliff"], "unknown lesson 'cliff': there is 00, 01"),
    (["run", "04", "BLOKS=1"], "lesson 04 has no parameter 'BLOKS': it has BLOCKS"),
    (["run", "04", "BLOCKS=-1"], "BLOCKS has to be a whole number from 1 to 1000, got '-1'"),
    (["run", "04", "BLOCKS=²"], "BLOCKS has to be a whole number"),
    (["run", "04", "BLOCKS=" + "9" * 5000], "BLOCKS has to be a whole number"),
    (["run", "15", "TESTS=mpi"], "TESTS has to be one or more of"),
    (["run", "--all", "BLOKS=1"], "no lesson has a parameter 'BLOKS'"),
    (["run", "04", "--save", ""], "--save: needs the name of a folder"),
    (["run", "04", "--save", str(files.ours("notebooks"))], "holds the lessons themselves"),
    (["run", "04", "--save", "/proc/nowhere"], "cannot write in /proc/nowhere"),
    (["lessons", ""], "DIR: needs the name of a folder"),
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is executed: the names of the lessons that would have been; lesson 09 has a cell that fails."""
    names: list[str] = []

    def execute(path: Path, values: Any, folder: Path | None, say: Any, shown: Any) -> execution.Done:
        names.append(files.number(path))
        table = pd.DataFrame({"us": [1.5], "what": ["5 µs → 6 µs"]})
        report = Report(f"demo_{files.number(path)}", "Found", "gloo · cpu", {"summary": table}, notes=["é"])
        done = execution.Done(path.stem, dict(values), [report])
        if folder is not None:
            report.save(folder)
        shown(report)
        if path.stem.startswith("09"):
            done.failed = f"{path.stem} [2]:3: ValueError: no"
        return done

    monkeypatch.setattr(execution, "execute", execute)
    return names


@pytest.mark.parametrize(("arguments", "said"), TYPED_WRONGLY)
def test_what_is_typed_wrongly_is_one_sentence_and_starts_nothing(
    arguments: list[str],
    said: str,
    measured: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    found = capsys.readouterr()
    assert found.err.startswith("labkit: ") and found.err.count("\n") == 1 and said in found.err
    assert not found.out and not measured and not list(tmp_path.iterdir())


def test_what_needs_no_torch_imports_none() -> None:
    quick = [["--version"], ["--help"], ["list"], ["lessons"], ["run", "--help"]]
    quick += [arguments for arguments, _ in TYPED_WRONGLY]
    script = (
        "import json, sys\nfrom labkit import cli\n"
        f"statuses = [cli.main(arguments) for arguments in {quick!r}]\n"
        "print(json.dumps([statuses, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    statuses, modules = json.loads(done.stdout.splitlines()[-1])
    assert statuses == [0] * 5 + [2] * len(TYPED_WRONGLY)
    assert "labkit" in modules and not HEAVY & set(modules)


# --- what is printed, wherever it goes ---


class Broken(io.TextIOWrapper):
    """Standard output whose reader has left, or whose disk is full."""

    def __init__(self, full: bool) -> None:
        if full:
            super().__init__(FULL.open("wb"))
        else:
            reading, writing = os.pipe()
            os.close(reading)
            super().__init__(os.fdopen(writing, "wb"))


COMMANDS = (["--help"], ["list"], ["run", "04"], ["ledger", "--diff", "2.13.0", "2.15.0"])


@needs_full
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_output_that_cannot_be_written_ends_every_command_with_a_sentence_or_in_silence(
    arguments: list[str],
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(full=True))
    assert cli.main(arguments) == 3
    said = "labkit: cannot write to standard output: No space left on device\n"
    assert capsys.readouterr().err == said
    monkeypatch.setattr(sys, "stdout", Broken(full=False))
    assert cli.main(arguments) == 141
    assert capsys.readouterr().err == ""


@needs_full
def test_python_adds_nothing_when_it_exits() -> None:
    """It flushes what is left in its buffers, and complains of its own."""
    command = [sys.executable, "-m", "labkit", "list"]
    with FULL.open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        3,
        "labkit: cannot write to standard output: No space left on device\n",
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(os.name != "posix", reason="closes file descriptors in a shell")
def test_closed_streams_are_as_good_as_none() -> None:
    for closed in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
        done = subprocess.run(
            f'"{sys.executable}" -m labkit list {closed}', shell=True, capture_output=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_stream_in_ascii_gets_what_it_can_take(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", shown)
    assert cli.main(["run", "04"]) == 0
    text = shown.buffer.getvalue().decode("ascii")
    assert r"Found  [gloo \xb7 cpu]" in text and r"\xe9" in text
    shown.seek(0)
    shown.truncate()
    assert cli.main(["run", "04", "--json"]) == 0
    ((found,),) = [one["reports"] for one in json.loads(shown.buffer.getvalue().decode("ascii"))]
    assert found["label"] == "gloo · cpu" and found["notes"] == ["é"]


# --- what is saved, wherever it should go ---


def no_space(*_: object) -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_cannot_be_saved_ends_the_run_with_a_sentence(
    measured: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("oddrank.report.write", no_space)
    assert cli.main(["run", "04", "05", "--save", str(tmp_path)]) == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"labkit: cannot save report 'demo_04' in {tmp_path}: No space left on device")
    assert measured == ["04"]


def test_a_cell_that_fails_costs_the_other_lessons_nothing(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "08", "09", "10", "--save", str(tmp_path), "--json"]) == 1
    found = capsys.readouterr()
    assert measured == ["08", "09", "10"] and len(list(tmp_path.glob("*.json"))) == 3
    assert "labkit: 09_guards_and_shapes [2]:3: ValueError: no; the notebook up to there: " in found.err
    assert "labkit: a cell failed in 09; the others ran to the end" in found.err
    failed = {files.number(one["lesson"]): bool(one["failed"]) for one in json.loads(found.out)}
    assert failed == {"08": False, "09": True, "10": False}


def test_a_folder_where_the_notebook_is_to_go_is_refused_before_anything_runs(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "04_graph_break_cliff.ipynb").mkdir()
    assert cli.main(["run", "04", "--save", str(tmp_path)]) == 2
    assert "04_graph_break_cliff.ipynb: it is a folder" in capsys.readouterr().err
    assert not measured


def test_under_torchrun_lessons_are_refused(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert cli.main(["run", "04"]) == 2
    assert "a lesson starts ranks of its own" in capsys.readouterr().err and not measured


@pytest.mark.parametrize("command", [["run", "--all", "--save"], ["lessons"]])
def test_a_file_where_a_folder_is_needed_is_refused_before_anything_runs(
    command: list[str], measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("precious")
    assert cli.main([*command, str(tmp_path / "mine")]) == 2
    assert "mine: it is a file, and a folder is needed" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "mine" / "below")]) == 2
    assert "below: Not a directory" in capsys.readouterr().err
    assert not measured and (tmp_path / "mine").read_text() == "precious"


def test_lessons_are_copied_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", no_space)
        assert cli.main(["lessons", str(tmp_path)]) == 3
    assert "cannot copy 00_" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert cli.main(["lessons", str(tmp_path)]) == 0
    first = sorted(tmp_path.iterdir())[0]
    first.write_text("mine")
    assert cli.main(["lessons", str(tmp_path)]) == 0 and first.read_text() == "mine"
    assert f"left alone, it is there already: {first}" in capsys.readouterr().out
