"""Rough handling of the command line: full disks, readers that leave, other encodings, and what nobody should type."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from labkit import cli, experiments, files, runs
from labkit.report import Report, provenance

HEAVY = {"torch", "pandas", "matplotlib", "numpy", "sympy"}
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
TYPED_WRONGLY = [
    (["nonsense"], "invalid choice: 'nonsense'"),
    ([], "the following arguments are required: COMMAND"),
    (["list", "--name", "x"], "unrecognized arguments: x"),
    (["run"], "the following arguments are required: experiment"),
    (["run", ""], "unknown experiment ''"),
    (["run", "all"], "unknown experiment 'all'"),
    (["run", "klippe"], "unknown experiment 'klippe'"),
    (["run", "cliff/"], "cliff is one experiment and has no ''"),
    (["run", "break-it/nothing"], "unknown break-it test 'nothing'"),
    (["run", "cliff", "collectives"], "unrecognized arguments: collectives"),
    (["run", "cliff", "--bloks", "1"], "unrecognized arguments: --bloks 1"),
    (["run", "cliff", "--blocks", "1" + 30 * "0"], "--blocks: must be a whole number from 1 to 1000"),
    (["run", "cliff", "--blocks", "-1"], "--blocks: must be a whole number from 1 to 1000, got '-1'"),
    (["run", "cliff", "--blocks", "²"], "--blocks: must be a whole number"),
    (["run", "cliff", "--blocks", "9" * 5000], "--blocks: must be a whole number"),
    (["run", "cliff", "--rounds", "1e9"], "--rounds: must be a whole number from 1 to 10000, got '1e9'"),
    (["run", "cliff", "--ranks", "1" + 30 * "0"], "--ranks: must be a whole number"),
    (["run", "cliff", "--device", "tpu"], "--device: invalid choice: 'tpu'"),
    (["run", "cliff", "--also", "mpi"], "--also: unknown 'mpi': there is nccl, gloo, shm, fake"),
    (["run", "cliff", "--save"], "--save: expected one argument"),
    (["run", "cliff", "--save", ""], "--save: needs the name of a folder"),
    (["run", "cliff", "--save", " "], "--save: needs the name of a folder"),
    (["run", "streams", "--size", "nan"], "--size: must be a whole number from 1 to 65536, got 'nan'"),
    (["run", "microbatch", "--size", "-5"], "--size: must be a whole number from 1 to 65536, got '-5'"),
    (["run", "cold", "--budget", "inf"], "--budget: must be a number"),
    (["run", "cold", "--form", "lukewarm"], "--form: unknown 'lukewarm': there is eager, cold"),
    (["run", "divergence", "--drill", ""], "--drill: unknown ''"),
    (["run", "depth", "--depths", "deep"], "--depths: takes blocks of the models, such as 1,2,4,8"),
    (["run", "scale", "--worlds", ""], "--worlds: takes world sizes to trace"),
    (["run", "scale", "--worlds", "2,x"], "--worlds: takes world sizes to trace"),
    (["run", "odd_shape", "--rounds", "3"], "odd_shape has no --rounds: it takes no option of its own"),
    (["record", "all", "--blocks", "-1"], "--blocks: must be a whole number from 1 to 1000, got '-1'"),
    (["record", "all", "--ranks", "4000"], "world_size 4000 is above what"),
    (["record", "all", "--into", ""], "--into: needs the name of a folder"),
    (["record", "nothing"], "unknown experiment 'nothing'"),
    (["lessons", ""], "DIR: needs the name of a folder"),
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is measured: the names of what would have been."""
    names: list[str] = []

    def measure(experiment: experiments.Experiment, *_: object, **__: object) -> Report:
        names.append(experiment.name)
        print("half of it")
        table = pd.DataFrame({"us": [1.5], "what": ["5 µs → 6 µs"], "result": ["green"]})
        return Report(
            experiment.name, "Found", "gloo · cpu", {"summary": table}, notes=["é"], provenance=provenance()
        )

    monkeypatch.setattr(runs, "measure", measure)
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
    quick = [["--version"], ["--help"], ["list"], ["list", "--names"], ["run", "cliff", "--help"]]
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


COMMANDS = (
    ["list"],
    ["list", "--names"],
    ["--help"],
    ["--version"],
    ["lessons"],
    ["score"],
    ["run", "cliff"],
)
COMMANDS += (
    ["ledger", "--diff", "2.13.0", "2.15.0"],
    ["ledger", "--json", "--only", "overlap.events-across-devices"],
)
COMMANDS += (["run", "cliff", "--json"], ["doctor", "--features"])


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


@needs_full
@pytest.mark.parametrize("full", [True, False])
def test_what_is_saved_is_saved_though_nobody_reads_the_output(
    full: bool, measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(full))
    assert cli.main(["run", "cliff", "--save", str(tmp_path)]) == (3 if full else 141)
    assert Report.load(tmp_path / "cliff.json").title == "Found"
    monkeypatch.setattr(sys, "stdout", Broken(full))
    assert cli.main(["record", "all", "--into", str(tmp_path / "all")]) == (3 if full else 141)
    assert len(list((tmp_path / "all").glob("*.json"))) == len(experiments.declared())


def test_a_stream_in_ascii_gets_what_it_can_take(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", shown)
    assert cli.main(["run", "cliff"]) == 0
    text = shown.buffer.getvalue().decode("ascii")
    assert "Found  [gloo - cpu]" in text and "5 us -> 6 us" in text and r"\xe9" in text
    shown.seek(0)
    shown.truncate()
    assert cli.main(["run", "cliff", "--json"]) == 0
    found = json.loads(shown.buffer.getvalue().decode("ascii").partition("\n")[2])
    assert found["label"] == "gloo · cpu" and found["notes"] == ["é"]
    assert shown.errors == "strict"  # as it was


@pytest.mark.slow
def test_an_experiment_runs_in_a_locale_of_ascii_only() -> None:
    """Without UTF-8 in the ranks, torch cannot read files of its own."""
    words = ["run", "collectives", "--only", "all_reduce sum", "--compiler", "inductor"]
    done = subprocess.run(
        [sys.executable, "-m", "labkit", *words],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "[gloo - cpu]" in done.stdout.decode("ascii")


# --- what is saved, wherever it should go ---


def no_space(*_: object) -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_result_that_cannot_be_saved_is_on_the_screen(
    measured: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(files, "replace", no_space)
    assert cli.main(["run", "cliff", "--save", str(tmp_path)]) == 3
    found = capsys.readouterr()
    assert "Found  [gloo · cpu]" in found.out
    assert found.err == f"labkit: cannot save report 'cliff' in {tmp_path}: No space left on device\n"
    last = json.loads((tmp_path / "cliff.running.jsonl").read_text().splitlines()[-1])
    assert "No space left" in last["ended"]
    assert cli.main(["run", "cliff", "--json", "--save", str(tmp_path)]) == 3
    assert '"title": "Found"' in capsys.readouterr().out


def test_a_recording_that_cannot_be_saved_is_shown_and_the_rest_is_not_started(
    measured: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(files, "replace", no_space)
    assert cli.main(["record", "all", "--into", str(tmp_path)]) == 3
    found = capsys.readouterr()
    assert measured == ["cliff"] and "Found  [gloo · cpu]" in found.out
    assert "not started: collectives, eager_trap" in found.err and "cannot save report 'cliff'" in found.err


@needs_full
def test_a_full_disk_does_not_end_a_run_that_others_follow(measured: list[str], tmp_path: Path) -> None:
    (tmp_path / "cliff.running.jsonl").symlink_to(FULL)
    assert cli.main(["run", "cliff", "--save", str(tmp_path)]) == 0
    assert (tmp_path / "cliff.json").exists()


@pytest.mark.parametrize("command", ["run", "record"])
@pytest.mark.parametrize("name", ["cliff.json", "cliff.running.jsonl"])
def test_a_folder_where_a_file_is_to_go_is_refused_before_anything_runs(
    command: str,
    name: str,
    measured: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).mkdir()
    assert cli.main([command, "cliff", "--save" if command == "run" else "--into", str(tmp_path)]) == 2
    assert f"cannot write {tmp_path / name}: it is a folder" in capsys.readouterr().err
    assert not measured


@pytest.mark.parametrize("command", [["run", "cliff", "--save"], ["record", "all", "--into"], ["lessons"]])
def test_a_file_where_a_folder_is_needed_is_refused_before_anything_runs(
    command: list[str], measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("precious")
    assert cli.main([*command, str(tmp_path / "mine")]) == 2
    assert "mine: it is a file, and a folder is needed" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "mine" / "below")]) == 2
    assert "below: Not a directory" in capsys.readouterr().err
    assert not measured and (tmp_path / "mine").read_text() == "precious"


def test_a_damaged_recording_is_named_before_anything_runs(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "break-it.json").write_text('{"name": 1')
    assert cli.main(["record", "all", "--into", str(tmp_path)]) == 2
    assert f"{tmp_path / 'break-it.json'} is not a saved report" in capsys.readouterr().err
    assert not measured


def test_what_an_experiment_refuses_of_what_was_typed_stops_a_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def measure(experiment: experiments.Experiment, *_: object, **__: object) -> Report:
        begun.append(experiment.name)
        raise ValueError("depths: a sweep varies something")

    monkeypatch.setattr(runs, "measure", measure)
    assert cli.main(["record", "all", "--depths", "4", "--into", str(tmp_path)]) == 2
    assert begun[-1] == "depth" and len(begun) < len(experiments.declared())
    assert capsys.readouterr().err.endswith("labkit: depths: a sweep varies something\n")


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


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_a_second_interrupt_while_ranks_are_ended_is_no_traceback() -> None:
    running = subprocess.Popen(
        [sys.executable, "-u", "-m", "labkit", "run", "divergence"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None and "2 ranks" in running.stdout.readline()
    running.send_signal(signal.SIGINT)
    for _ in range(20):
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "Traceback" not in said
