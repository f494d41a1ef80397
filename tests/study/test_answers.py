"""The reader's own file: added to by several kernels at once, never shortened, and read whatever happened to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.study import answers

ROOT = Path(__file__).resolve().parents[2]


def values(question: str) -> list[float]:
    return [entry.value for entry in answers.entries() if entry.question == question]


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"LABKIT_HOME": "/given/here"}, "/given/here"),
        ("linux", {"LABKIT_HOME": "~/mine"}, "/users/me/mine"),
        ("linux", {}, "/users/me/.local/share/labkit"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/labkit"),
        ("linux", {"XDG_DATA_HOME": "not/absolute"}, "/users/me/.local/share/labkit"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, "/users/me/Library/Application Support/labkit"),
    ],
)
def test_the_folder_is_the_platforms_own_unless_one_is_named(monkeypatch, platform, variables, folder):
    for name in ("LABKIT_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/users/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert str(answers.home()) == folder


def test_tests_have_a_folder_of_their_own():
    assert Path(os.environ["LABKIT_HOME"]) == answers.home() and "labkit-home-" in answers.home().name


def test_what_is_added_is_read_back_in_order_by_any_process(home):
    assert answers.add("predicted", "q", 3, "breaks") == ""
    assert answers.add("measured", "q", 4, "breaks", torch="2.13.0", label="shm · cpu") == ""
    first, second = answers.entries()
    assert (first.kind, first.value, first.unit) == ("predicted", 3.0, "breaks")
    assert (second.torch, second.label) == ("2.13.0", "shm · cpu") and second.date >= first.date > ""
    ask = "from labkit.study import answers; print([e.value for e in answers.entries()])"
    run = subprocess.run(
        [sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "[3.0, 4.0]"
    assert (home / "predictions.jsonl").stat().st_mode & 0o077 == 0  # nobody else's business


def test_two_processes_that_add_at_once_lose_nothing(home):
    code = (
        "import sys; from labkit.study import answers\n"
        "for i in range(300): assert answers.add('predicted', sys.argv[1], i, 'x' * 200) == ''"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, name], cwd=ROOT) for name in ("a", "b")]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert answers.unreadable() == 0
    for name in ("a", "b"):
        assert values(name) == list(range(300))


def test_a_lock_that_is_never_let_go_is_not_waited_for_for_long(home, monkeypatch):
    import fcntl

    monkeypatch.setattr(answers, "LOCK_S", 0.05)
    answers.add("predicted", "q", 1)
    with (home / "predictions.jsonl").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert answers.add("predicted", "q", 2) == ""
    assert values("q") == [1, 2]


def test_damaged_lines_are_passed_over_and_stay(home):
    answers.add("predicted", "q", 1)
    damaged = [
        b"not json",
        b'{"kind": "predicted"}',
        b'{"kind": "predicted", "question": "q", "value": "many"}',
        b'{"kind": "predicted", "question": "q", "value": NaN}',
        b'{"kind": "guessed", "question": "q", "value": 1}',
        b"[1, 2]",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"kind": "predicted", "question": "q", "val',  # its writer died: no end of line
    ]
    path = home / "predictions.jsonl"
    with path.open("ab") as out:
        out.write(b"\n".join(damaged))
    before = path.read_bytes()
    answers.add("predicted", "q", 2)
    assert values("q") == [1, 2]
    assert answers.unreadable() == len(damaged)
    assert path.read_bytes().startswith(before)


def test_fields_of_a_later_version_do_not_hide_an_answer(home):
    home.mkdir()
    line = '{"kind": "predicted", "question": "q", "value": 7, "mood": "good"}\n'
    (home / "predictions.jsonl").write_text(line)
    assert values("q") == [7] and answers.unreadable() == 0


def test_where_nothing_can_be_written_answers_last_as_long_as_the_kernel(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("a file stands where the folder should")
    monkeypatch.setenv("LABKIT_HOME", str(blocked / "home"))
    said = answers.add("predicted", "q", 5)
    assert said.startswith("cannot write ") and said.endswith("kept for this kernel only")
    assert "\n" not in said and str(blocked) in said
    assert values("q") == [5]
    blocked.unlink()  # now it can be
    assert answers.add("predicted", "q", 6) == ""
    assert values("q") == [5, 6]
    assert (blocked / "home" / "predictions.jsonl").read_text().count("\n") == 2
