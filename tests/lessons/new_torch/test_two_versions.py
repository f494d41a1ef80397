"""Lesson 19's two versions side by side: given by path, or one of them as it was saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from labkit import files
from ledger import environments

HERE = torch.__version__.partition("+")[0]


def cells():
    notebook = json.loads((files.ours("notebooks") / "19_new_torch.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def lesson():
    """The names that the two cells of the lesson define."""

    def run(get=False):
        names = {
            "json": json,
            "os": os,
            "subprocess": subprocess,
            "sys": sys,
            "tempfile": tempfile,
            "Path": Path,
        }
        names |= {"torch": torch, "files": files, "environments": environments}
        for begin in ("GET_IT = False", "def on_each("):
            (source,) = [cell for cell in cells() if begin in cell and not cell.startswith("%")]
            exec(source.replace("GET_IT = False", f"GET_IT = {get}"), names)
        return names

    return run


def test_a_second_environment_is_given_by_its_path(lesson, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_OTHER_PYTHON", f"9.9.9={sys.executable}")
    names = lesson()
    program = tmp_path / "claim.py"
    program.write_text("import ledger, labkit; print('ran')")
    capsys.readouterr()
    names["on_each"](program)
    assert capsys.readouterr().out == f"torch {HERE}: ran\ntorch 9.9.9: ran\n"


def test_a_program_that_fails_shows_its_error(lesson, tmp_path, monkeypatch, capsys):
    names = lesson()
    program = tmp_path / "claim.py"
    program.write_text("raise SystemExit('no such thing')")
    names["on_each"](program)
    assert "exit status 1: no such thing" in capsys.readouterr().out


def test_where_uv_cannot_get_it_what_was_saved_is_shown_for_the_same_program_only(
    lesson, tmp_path, monkeypatch, capsys
):
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    names = lesson(get=True)
    assert list(names["pythons"]) == [HERE]
    saved = {cell.partition("\n")[0].split()[1]: cell for cell in cells() if cell.startswith("%%writefile")}
    assert set(saved) == set(names["twins"]["programs"])
    names["pythons"] = {HERE: ["echo", "here"]}
    for name, cell in saved.items():
        program = tmp_path / name
        program.write_text(cell.partition("\n")[2] + "\n")
        names["on_each"](program)
        out = capsys.readouterr().out
        assert f"torch {HERE}: here" in out and f"saved: torch {names['twins']['torch']}" in out
        program.write_text(program.read_text() + "# mine\n")
        names["on_each"](program)
        assert "the saved output is of another program: set GET_IT" in capsys.readouterr().out
