"""The ledger across torch versions: what differs, since when, and an environment that is whole or not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from labkit import cli, files
from labkit.study import environments, ledger, recorded, results, versions
from labkit.study.catalog import CHECKS
from labkit.study.claims import Claims, load

REAL = load(checks=CHECKS)
ROWS = REAL.choose(
    only=["t11.trap.one-escape", "t11.intro.traceable", "soc.c9.no-autograd", "t11.intro.new-tensors"]
)
CLAIMS = Claims(REAL.sources, ROWS, 0)
# of each row, in the order of ROWS: its status on three torch versions
SEEN = {
    "2.11.0": ("holds", "holds", "changed", "holds"),
    "2.12.0": ("holds", "cannot tell here", "changed", "holds"),
    "2.13.0": ("holds", "changed", "changed", "changed"),
}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Three recorded versions in a folder, which is where all look."""
    for version, statuses in SEEN.items():
        lines = [ledger.Line(row, s, f"{s} on {version}") for row, s in zip(ROWS, statuses, strict=True)]
        found = ledger.Ledger(tuple(lines), {}, 0, len(ROWS), {"torch": version, "hardware": "a box"})
        results.of(found).save(tmp_path / f"torch-{version}")
    (tmp_path / "torch-nonsense").mkdir()
    monkeypatch.setattr(recorded, "home", lambda: tmp_path)
    monkeypatch.setattr(files, "ours", lambda path: tmp_path)
    return tmp_path


def test_a_claim_changed_since_the_first_version_after_one_on_which_it_holds(kept):
    changed = {ROWS[1].id: "2.13.0", ROWS[3].id: "2.13.0"}
    assert (
        versions.since(CLAIMS, kept) == changed
    )  # and of a row that changed before them all, nobody knows when
    table = versions.matrix(CLAIMS, kept)
    assert list(table.columns) == list(SEEN)
    assert list(table.index) == [ROWS[1].id, ROWS[3].id, ROWS[2].id, ROWS[0].id]  # what differs stands first


def test_a_result_that_does_not_count_any_more_is_not_run(kept):
    from dataclasses import replace

    table = versions.matrix(Claims(REAL.sources, (replace(ROWS[0], claim="Other words."),), 0), kept)
    assert set(table.loc[ROWS[0].id]) == {"not run"}


def test_what_differs_is_printed_with_both_measurements(kept, capsys):
    assert cli.main(["ledger", "--diff", "2.11", "2.13.0"]) == 0
    out = capsys.readouterr().out
    assert "2 of 4 rows differ (torch 2.11.0: a box" in out
    for row in (ROWS[1], ROWS[3]):
        assert row.id in out and "holds on 2.11.0" in out and "changed on 2.13.0" in out
    assert ROWS[0].id not in out and ROWS[2].id not in out
    assert cli.main(["ledger", "--diff", "2.13.0", "2.13.0"]) == 0
    assert "0 of 4 rows differ" in capsys.readouterr().out


def test_the_run_on_the_nearest_torch_is_found(kept):
    found = [recorded.ledger(torch).parent.name for torch in ("2.12.1+cpu", "2.14.0a0+git12", "2.9.0")]
    assert found == ["torch-2.12.0", "torch-2.13.0", "torch-2.11.0"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--torch", "nonsense"], "a torch version is a release such as 2.15.0, got 'nonsense'"),
        (["--torch", "2.9.0"], "labkit supports torch 2.11 to 2.15, not 2.9.0"),
        (["--diff", "2.13.0"], "--diff compares two torch versions"),
        (
            ["--diff", "2.13.0", "2.15.0"],
            "no ledger is recorded on torch 2.15.0 (there is: 2.11.0, 2.12.0, 2.13.0)",
        ),
        (["--torch", "2.15.0", "--diff", "2.14.0"], "`labkit ledger --torch 2.14.0` makes one"),
        (["--remove"], "--remove goes with --torch"),
        (["--torch", "2.15.0", "--save"], "--save goes without --torch"),
    ],
)
def test_what_cannot_be_met_is_one_sentence_before_anything_is_made(asked, says, kept, capsys, monkeypatch):
    monkeypatch.setattr(environments, "make", lambda *a: pytest.fail("something was made"))
    assert cli.main(["ledger", *asked]) == 2
    assert says in capsys.readouterr().err


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
