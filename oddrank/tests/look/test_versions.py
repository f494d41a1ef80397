"""`oddrank look --torch`: what changes between versions of torch, and what is not laid at their door."""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from oddrank.look import changes, interpreters, versions, versions_page

import oddrank
from labkit import files
from oddrank import command as cli

SCRIPTS = Path(__file__).parent / "scripts"
PAIR = files.ours("data/captured/two_torches.json")


@pytest.fixture
def pair():
    """What was measured of scripts/upgraded.py on torch 2.13 and 2.15."""
    return json.loads(PAIR.read_text())


@pytest.fixture
def alike(pair):
    """Two versions that do the same: the first one, twice."""
    pair["versions"][1] = copy.deepcopy(pair["versions"][0]) | {"label": "9.9.9"}
    equal = copy.deepcopy(pair["versions"][0]["own"]["kinds"])
    pair["versions"][1]["first"] = {"kinds": equal, "left": []}
    return pair


def test_three_facts_of_the_ledger_are_found_between_two_recorded_versions(pair):
    first, told = changes.tell(pair["versions"])
    assert (first.error, first.changes, first.left) == ("", [], [])
    said = {}
    for change in told.changes:
        said.setdefault(change.name, []).append(change.said)
    assert set(said) == {"recompiles", "graphs", "causes", "losses", "parameters"}
    # breaks.count-in-a-global: each call compiles again up to 2.13
    assert said["recompiles"] == ["recompiles 5 before, 0 now"]
    assert any(
        one.startswith("is gone: upgraded.py:") and "Layer.forward was compiled 6 times" in one
        for one in said["causes"]
    )
    # breaks.module-compile: .compile() of nn.Sequential compiles nothing up to 2.13
    assert said["graphs"][0].endswith(" now") and not any("appears" in one for one in said["causes"])
    # reading.add-a-number: Inductor rounds the number to bfloat16 since 2.14, so the first loss differs
    assert said["losses"][0].endswith("at step 1, rank 0")
    assert "parameters differ: by at most" in said["parameters"][0]
    assert "collectives" in told.same and "bytes of collectives" in told.same


def test_the_page_shows_the_table_and_escapes_what_a_program_said(pair):
    pair["versions"][1]["runs"][0]["causes"][0:0] = [{"key": "<b>", "place": "<i>", "said": "<script>"}]
    body = versions_page.html(pair, ["graphs"])
    assert "<script>" not in body and "&lt;script&gt;" in body and "<i>" not in body
    for version in pair["versions"]:
        for run in version["runs"]:
            assert f"href='{run['folder']}/index.html'" in body
    assert "<th>graphs</th>" in body and "class='bad'" in body and "torch.testing.assert_close" in body


def test_versions_that_do_the_same_are_said_to_with_what_was_compared(alike):
    _, told = changes.tell(alike["versions"])
    assert told.changes == told.left == []
    assert told.sentence.startswith(
        f"9.9.9: the same as {told.first} in what was compared: breaks, frames given up,"
    )
    assert "bit-equal" in told.sentence and "bytes of collectives" in told.sentence
    assert "class='bad'" not in versions_page.html(alike, [])


def test_what_differs_between_runs_of_one_version_is_not_laid_at_its_door(alike):
    other = alike["versions"][1]
    other["runs"][0]["counts"]["ranks"]["0"]["graphs"] += 1
    other["runs"][0]["causes"] = other["runs"][0]["causes"][1:]
    other["own"]["kinds"]["losses"] |= {"close": False, "equal": False, "relative": 0.5}
    other["first"]["kinds"]["losses"] |= {"close": False, "equal": False, "relative": math.inf}
    _, told = changes.tell(alike["versions"])
    assert told.changes == []
    assert "graphs, which differ between runs of 9.9.9" in told.left
    assert any(one.startswith("losses, which differ between runs of 9.9.9") for one in told.left)
    assert any(one.startswith("a cause in some runs of one version only") for one in told.left)
    rows = list(changes.shown(alike["versions"]))
    assert rows[1]["losses"] == "not compared" and " or " in rows[1]["graphs"]


def test_values_within_the_tolerance_are_no_change_and_not_called_equal(alike):
    far = alike["versions"][1]["first"]["kinds"]["losses"]
    far |= {"equal": False, "close": True, "absolute": 1e-8, "relative": 2e-8, "where": "step 3, rank 1"}
    _, told = changes.tell(alike["versions"])
    assert told.changes == [] and "within the tolerance: by at most 1e-08" in told.sentence


def test_a_version_on_which_the_script_fails_is_a_row_and_the_others_are_compared(alike):
    failed = copy.deepcopy(alike["versions"][1]) | {"label": "8.8.8", "own": {"kinds": {}, "left": []}}
    failed["first"] = failed["own"]
    failed["runs"] = [{"folder": "3-run-1", "error": "rank 1 raised ValueError: <no>", "seconds": 1.0}] * 2
    told = changes.tell([*alike["versions"], failed])
    assert [change.name for change in told[2].changes] == ["error"] and told[1].changes == []
    assert list(changes.shown([*alike["versions"], failed]))[2]["error"] == "rank 1 raised ValueError: <no>"
    assert "&lt;no&gt;" in versions_page.html(alike | {"versions": [*alike["versions"], failed]}, [])
    first, *_ = changes.tell([failed, *alike["versions"]])
    assert first.error and changes.reference([failed, *alike["versions"]]) is alike["versions"][0]
    assert changes.reference([failed]) is None and changes.tell([failed])[0].changes == []


def test_another_reason_of_one_line_is_no_other_cause(alike):
    cause = alike["versions"][1]["runs"][0]["causes"][0]
    for run in alike["versions"][1]["runs"]:
        run["causes"][0] = cause | {"said": "said in other words"}
    _, told = changes.tell(alike["versions"])
    assert told.changes == []


def test_names_of_changes_are_those_that_can_be_allowed(pair, alike):
    names = {change.name for one in changes.tell(pair["versions"]) for change in one.changes}
    assert names < set(changes.CHANGES)


ALL = ["recompiles", "graphs", "causes", "losses", "parameters"]


@pytest.mark.parametrize(
    ("allow", "against", "status", "said"),
    [
        (ALL, None, 0, "page: "),
        (ALL[1:], None, 1, "not allowed to change: recompiles (--allow NAME lets it)"),
        (ALL, 0, 0, "torch 2.15.0: gate passed"),
        (ALL, 1, 1, "torch 2.13.0+cpu: gate failed"),
    ],
)
def test_the_exit_status_is_that_of_what_is_not_allowed_and_of_each_gate(
    allow, against, status, said, pair, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = argparse.Namespace(allow=allow, save=Path("base.json"), against=Path("before.json"))
    before = None if against is None else pair["versions"][against]["runs"][0]["counts"]
    assert versions._finish(pair, tmp_path, given, before) == status
    told = capsys.readouterr().out
    assert said in told and ("not allowed" in told) == (allow != ALL)
    assert json.loads((tmp_path / "base.json").read_text())["torch"] == "2.13.0+cpu"


def test_where_no_version_runs_the_status_is_that_of_the_script(pair, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for version in pair["versions"]:
        for run in version["runs"]:
            run["error"] = "rank 0 raised ImportError"
    given = argparse.Namespace(allow=["error"], save=Path("base.json"), against=None)
    assert versions._finish(pair, tmp_path, given, None) == 3
    assert capsys.readouterr().out.count("the script fails: rank 0 raised ImportError") == 2
    assert not (tmp_path / "base.json").exists() and (tmp_path / "index.html").is_file()


def test_an_interpreter_finds_this_oddrank_first_and_the_modules_of_the_script(tmp_path, monkeypatch):
    taken = {"UV_CACHE_DIR": "a", "UV_OFFLINE": "1"}
    other = ("UV_PYTHON", "UV_OFFLINE_TOO", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    for name, value in {**dict.fromkeys(other, str(tmp_path)), **taken}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    first, second = interpreters.find([sys.executable, sys.executable])
    *_, own = first.env["PYTHONPATH"].split(os.pathsep)
    assert own == str(tmp_path) and first.version == second.version and first.label != second.label
    assert taken.items() <= first.env.items() and not first.env.keys() & set(other)
    asked = [*first.python, "-c", "import oddrank; print(oddrank.__file__)"]
    found = subprocess.run(asked, env=first.env, capture_output=True, text=True, cwd=tmp_path).stdout
    assert Path(found.strip()).samefile(oddrank.__file__)


@pytest.mark.slow
def test_one_torch_in_two_environments_changes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "second"], check=True)
    (packages,) = (tmp_path / "second").glob("lib/python*/site-packages")
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "here.pth").write_text(here)
    words = f"--torch {sys.executable} --torch second --skip 1 --steps 2 --save base.json".split()
    script = [str(SCRIPTS / "upgraded.py"), "sum"]
    assert cli.main(["look", "--out", "page", *words, *script]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "4 runs, one after another; each may take 12 minutes" in said and "the same as" in said
    body = json.loads((tmp_path / "page/versions.json").read_text())
    for version in body["versions"]:
        assert [run["error"] for run in version["runs"]] == ["", ""]
        assert version["first"]["kinds"]["losses"] | {"equal": True} == version["first"]["kinds"]["losses"]
        assert version["first"]["kinds"]["parameters"]["compared"] == 12, "six of each rank"
        assert version["runs"][0]["bytes"] == {"0": 8.0, "1": 8.0}, "a float32 forward and one backward"
    assert (tmp_path / "page/1-run-1/index.html").is_file() and "1-run-1/index.html" in (
        tmp_path / "page/index.html"
    ).read_text()
    assert json.loads((tmp_path / "base.json").read_text())["program"] == "upgraded.py"
    assert not list((tmp_path / "page").glob("*/values-*.pt")), "only with --values"
