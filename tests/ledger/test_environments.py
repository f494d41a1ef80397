"""Another torch by the real uv: what its interpreter finds of this one, and what is said where uv cannot."""

from __future__ import annotations

import subprocess

import pytest

from labkit import cli
from ledger import environments as ours
from ledger import versions
from oddrank import environments


@pytest.fixture
def nothing_to_get(tmp_path, monkeypatch):
    """pip is configured to look in an empty folder, and nowhere else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def test_uv_says_why_it_cannot(nothing_to_get, tmp_path, monkeypatch, capsys):
    # without pip nothing reads the fixture, and uv may get it: then one fact, and not into the checkout
    monkeypatch.setattr(versions, "home", lambda: tmp_path)
    assert cli.main(["ledger", "--torch", "2.15", "--only", "groups.init-waits-for-all"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "uv cannot get" in line]
    start = "uv cannot get torch 2.15.0 from where pip is configured to look: "
    before, words = said.split(start)
    assert "not found in the provided package locations" in words and len(words) <= environments.SAID


def test_without_uv_the_way_to_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr(environments.shutil, "which", lambda *a, **k: None)
    assert cli.main(["ledger", "--torch", "2.15.0"]) == 2
    assert "takes uv, and there is none here: `python -m pip install uv`" in capsys.readouterr().err


@pytest.mark.parametrize("installed", ["from the checkout", "beside torch"])
def test_another_interpreter_finds_labkit_and_the_ledger_and_no_torch(
    installed, nothing_to_get, tmp_path, monkeypatch
):
    if installed == "beside torch":
        for name in ("labkit", "course", "ledger", "torch"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").touch()
        for module in (ours.labkit, ours.ledger):
            monkeypatch.setattr(module, "__file__", str(tmp_path / module.__name__ / "__init__.py"))
    options, env = ours.options()
    options = [one for one in options if not one.startswith("--with=")]  # these take an index
    found = "import importlib.util as u; print(*[n for n in ('labkit', 'ledger', 'torch') if u.find_spec(n)])"
    command = ["uv", "run", "--isolated", "--no-project", *options, "python", "-c", found]
    assert subprocess.run(command, env=env, capture_output=True, text=True).stdout == "labkit ledger\n"
