"""An environment with another torch: whole or not there, and what its interpreter finds of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import cli
from labkit.study import environments


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


# in the place of uv: makes what looks like an environment, then fails as uv does
FALSE_UV = """
import pathlib, sys
if "venv" in sys.argv:
    python = pathlib.Path(sys.argv[-1]) / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text("#!/bin/sh\\necho {version}\\n")
    python.chmod(0o755)
else:
    sys.exit({said!r})
"""


def false_uv(tmp_path, monkeypatch, said: str, version: str = "2.15.0") -> None:
    script = tmp_path / "uv.py"
    script.write_text(FALSE_UV.replace("{said!r}", repr(said or 0)).replace("{version}", version))
    monkeypatch.setattr(environments, "_uv", lambda: [sys.executable, str(script)])


@pytest.mark.parametrize(
    ("said", "version", "says"),
    [
        (
            "Because there is no version of torch==2.15.0",
            "2.15.0",
            "torch 2.15.0 is in none of the places that pip",
        ),
        (
            "error sending request: dns error",
            "2.15.0",
            "torch 2.15.0 cannot be installed: the package index is not",
        ),
        (
            "No space left on device",
            "2.15.0",
            "torch 2.15.0 cannot be installed; uv says: No space left on device",
        ),
        ("", "2.14.1+cu130", "torch 2.15.0 was asked for, and 2.14.1+cu130 is what was installed"),
    ],
)
def test_an_environment_that_failed_leaves_nothing(cache, tmp_path, monkeypatch, said, version, says):
    false_uv(tmp_path, monkeypatch, said, version)
    with pytest.raises(ValueError) as error:
        environments.make("2.15.0")
    assert says in str(error.value)
    assert not environments.folder("2.15.0").exists()


def test_an_environment_is_made_once_and_removed_on_request(cache, tmp_path, monkeypatch, capsys):
    false_uv(tmp_path, monkeypatch, "")
    talked: list[str] = []
    python = environments.make("2.15", talked.append)
    assert environments.make("2.15.0", talked.append) == python and len(talked) == 1
    (environments.folder("2.15.0") / environments.WHOLE).unlink()  # as one that was killed while it was made
    python.write_text("half")
    assert environments.make("2.15.0", talked.append) == python and len(talked) == 2
    assert subprocess.run([python], capture_output=True, text=True).stdout == "2.15.0\n"
    for said in ("removed: ", "there is no environment with torch 2.15.0"):
        assert cli.main(["ledger", "--torch", "2.15.0", "--remove"]) == 0
        assert capsys.readouterr().out.startswith(said)
    assert not environments.folder("2.15.0").exists()


def test_without_uv_the_way_to_it_is_said(cache, monkeypatch):
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="takes uv, and there is none here: `python -m pip install uv`"):
        environments.make("2.15.0")
    assert not environments.folder("2.15.0").exists()


def test_another_interpreter_finds_labkit_and_the_ledger_and_no_torch_of_this_one(
    cache, tmp_path, monkeypatch
):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert environments.variables()["PYTHONPATH"] == str(Path(environments.__file__).parents[2])
    site = tmp_path / "site-packages"  # where a wheel would put it, beside torch
    for name in ("labkit/study", "course", "ledger", "torch"):
        (site / name).mkdir(parents=True)
    monkeypatch.setattr(environments, "__file__", str(site / "labkit/study/environments.py"))
    for _ in range(2):
        path = Path(environments.variables()["PYTHONPATH"])
        assert sorted(os.listdir(path)) == ["course", "labkit", "ledger"]
        assert (path / "ledger").resolve() == (site / "ledger").resolve()
