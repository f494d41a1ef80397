"""`oddrank look --perturb`: scripts that depend on one thing that differs between hosts, and their repairs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oddrank.look import conditions, decisions, outcomes, perturbations_page
from oddrank.look import perturbations as perturbing
from oddrank.look.conditions import shorter
from oddrank.look.decisions import Decision, parting
from oddrank.look.endings import Ending
from oddrank.look.outcomes import Outcome
from oddrank.look.perturbations import perturbations
from oddrank.look.runs import Trial
from processes import left
from torch.utils.data import DataLoader, TensorDataset

from labkit import torch_compat
from labkit.pace import patience
from oddrank import command as cli

SCRIPT = str(Path(__file__).parent / "scripts" / "perturbed.py")
WARM = "as it is, warm caches"
KINDS = [one.name for one in perturbations(1)]


@pytest.fixture
def perturb(tmp_path, monkeypatch, capsys):
    """Run the command here; its exit status, the rows of its JSON by name, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        capsys.readouterr()
        status = cli.main(["look", "--perturb", "--stall", "20", "--out", "out", *words])
        printed = capsys.readouterr()
        file = tmp_path / "out" / "perturb.json"
        rows = json.loads(file.read_text()) if file.exists() else {"rows": []}
        return status, {row["name"]: row for row in rows["rows"]}, printed.out + printed.err

    return run


SHARED_GROUP = torch_compat.within(torch.__version__, until="2.14")
WAVES = ("--perturb-env", "WAVES=2")
SEVERAL = {  # what is found, and where the compiler parts first
    "hash-seed": (["numbers", "graph"], "graph: Dynamo's graph of names_parts_waves"),
    "other-cache": (["numbers"], "graph: AOTAutograd's graphs of by_rows"),
    "batch": (["collectives"], ""),
    "threads": (["collectives"], "graph: Dynamo's graph of names_parts_waves"),
    "WAVES=2": (["collectives"], "graph: Dynamo's graph of names_parts_waves"),
}


@pytest.mark.slow
def test_each_of_several_faults_is_found_by_its_own_difference_and_may_be_allowed(perturb, tmp_path):
    only = [word for kind in SEVERAL for word in ("--only", kind)]
    allow = [word for one in ("batch:collectives", "numbers", "graph") for word in ("--allow", one)]
    status, rows, said = perturb(*only, *WAVES, *allow, SCRIPT, "several")
    assert rows[WARM]["found"] == [], said
    assert {kind: rows[kind]["found"] for kind in SEVERAL} == {
        kind: one for kind, (one, _) in SEVERAL.items()
    }
    for kind, (_, decision) in SEVERAL.items():
        assert rows[kind]["parting"].startswith(decision) and kind in said, rows[kind]
    assert status == 1 and "--allow covers 3 of them" in said
    assert (tmp_path / "out" / "index.html").exists() and not (tmp_path / "out" / "caches").exists()


ALONE = {
    # since 2.15 the exchange has a process group of its own, and nothing to be compared with there
    "cold-cache": (["collectives" if SHARED_GROUP else "hang"], "cache: exchange"),
    "slow-compile": (["error"], ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALONE)
def test_a_fault_of_cold_caches_is_found(kind, perturb):
    short = patience(10)  # ranks compile at the same time, on a busy machine more or less so
    timeout = ["--timeout", str(short)] if kind == "slow-compile" else []
    status, rows, said = perturb("--only", kind, "--perturb-delay", str(3 * short), SCRIPT, kind, *timeout)
    found, decision = ALONE[kind]
    assert status == 1 and rows[WARM]["found"] == [], said
    assert rows[kind]["found"] == found and rows[kind]["parting"].startswith(decision), rows[kind]


@pytest.mark.slow
def test_nothing_is_found_in_the_repaired_program(perturb):
    """Each difference once; the timeout is longer than the slow compile."""
    status, rows, said = perturb("--perturb-delay", "5", *WAVES, SCRIPT, "several", "--fixed")
    assert status == 0 and set(rows) == {WARM, *KINDS, "WAVES=2"}, said
    assert all(row["found"] == [] and not row["untried"] for row in rows.values()), rows


@pytest.mark.slow
def test_a_script_that_fails_is_no_finding(perturb, tmp_path):
    (tmp_path / "fails.py").write_text("raise LookupError('as it is')")
    status, rows, said = perturb("fails.py")
    assert status == 3 and not rows and "LookupError: as it is" in said and "nothing was compared" in said


@pytest.mark.slow
def test_numbers_that_differ_by_themselves_are_not_compared_and_it_is_said(perturb, tmp_path):
    """And a batch that no DataLoader gave was not tried."""
    text = Path(SCRIPT).read_text()
    assert "torch.manual_seed(0)" in text
    (tmp_path / "unseeded.py").write_text(text.replace("torch.manual_seed(0)", "pass"))
    status, rows, said = perturb("--only", "batch", "--perturb-step", "99", "unseeded.py", "slow-compile")
    assert status == 0 and "and were not compared: losses by up to" in said, said
    assert all(row["found"] == [] and row["compared"] == "" for row in rows.values())
    assert rows["batch"]["untried"].startswith("not tried: no DataLoader")
    assert "were not compared" in (tmp_path / "out" / "index.html").read_text()


def test_a_program_that_differs_from_run_to_run_is_not_laid_at_the_door_of_a_difference():
    own = Outcome(
        WARM, "", ["collectives"], ["rank 0 calls 2 all_reduce, and 1 all_reduce without it"], "", 3.0, "warm"
    )
    other = Outcome("logs", "TORCH_LOGS=recompiles", ["collectives"], [], "", 3.0, "logs")
    said = outcomes.verdict([own, replace(other, found=[])], 1)
    assert said.startswith(
        "the same in what was compared in each of 2 runs: graphs, recompiles and numbers; the program as it is differs"
        " between its own two runs"
    )
    assert "(other collectives)" in said and said.endswith("no run with a difference was blamed for that")
    same = replace(own, found=[])
    assert outcomes.verdict([same, other], 1) == "1 of 2 runs differ, by one thing on rank 1: logs"


def test_what_the_program_as_it_is_does_by_itself_is_no_finding_but_how_a_run_ends_is(tmp_path, monkeypatch):
    def found(graph: str, own: list[str], ending: Ending) -> list[str]:
        kinds = ["collectives"] if ending.said else []
        monkeypatch.setattr(perturbing, "compare", lambda *_: (kinds, kinds))
        monkeypatch.setattr(decisions, "read", lambda folder: _ranks({"graph": folder.name}))
        base, now = (Trial(tmp_path / one, end, 1.0, None) for one, end in (("a", Ending()), (graph, ending)))
        return perturbing._row("logs", "more logs", now, base, -1, False, own).found

    assert found("b", [], Ending()) == ["graph"]
    assert found("b", ["graph"], Ending()) == []
    diverged = Ending("different collectives", diverged=True)
    assert found("a", ["collectives", "graph"], diverged) == ["collectives"]


@pytest.mark.slow
def test_an_interrupt_ends_it_with_what_was_found_and_leaves_nothing(tmp_path):
    mark = f"LABKIT_TEST_MARK={tmp_path.name}"
    words = [sys.executable, "-m", "oddrank", "look", "--perturb", "--out", "out", SCRIPT, "slow-compile"]
    env = {**os.environ, "LABKIT_TEST_MARK": tmp_path.name}
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith(WARM) for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(patience(60)) == 130
    until = time.monotonic() + patience(20)
    while left(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert left(mark) == []
    assert not (tmp_path / "out" / "caches").exists() and not list(tmp_path.glob("out/*/values-*.pt"))
    assert [row["name"] for row in json.loads((tmp_path / "out" / "perturb.json").read_text())["rows"]] == [
        WARM
    ]


def _ranks(*made: dict[str, str]) -> dict[int, dict[str, Decision]]:
    """What each rank decided of one compile; of another one as well where there is `late`."""
    found = {}
    for rank, one in enumerate(made):
        told = dict(one)
        late = told.pop("late", None)
        found[rank] = {"0/0": Decision("0/0", "f (a.py:1)", **told)}  # type: ignore[arg-type]
        if late is not None:
            found[rank]["1/0"] = Decision("1/0", "g (a.py:9)", again=late)
    return found


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        ({"graph": "b"}, "graph: Dynamo's graph of f (a.py:1) is another on rank 1 than on rank 0"),
        ({"cached": "miss"}, "cache: f (a.py:1) was a cache miss on rank 1 and a hit on rank 0"),
        (
            {"code": "z"},
            "kernel: Inductor's code of f (a.py:1) is another on rank 1 than on rank 0, for the same graph",
        ),
        (
            {"again": "x.size()[0] == 8"},
            "guard: f (a.py:1) was compiled again on rank 1: x.size()[0] == 8; on rank 0: nothing",
        ),
        ({"late": ""}, "graph: rank 1 compiled g (a.py:9); rank 0 did not"),
        ({"late": "n == 3"}, "guard: rank 1 compiled g (a.py:9) again: guard n == 3; rank 0 did not"),
        ({}, ""),
    ],
)
def test_the_first_decision_in_which_a_rank_parts_is_named(mine, said):
    alike = {"graph": "a", "cached": "hit", "code": "y"}
    assert parting(_ranks(alike, alike | mine), _ranks(alike, alike), 1) == said
    assert parting(_ranks(alike, alike | mine), _ranks(alike, alike | mine), 1) == "", "it was so before"
    # where every rank goes along, the run before says what is other
    both = parting(_ranks(alike | mine, alike | mine), _ranks(alike, alike), 1)
    assert (
        bool(both) == bool(said) and "rank" not in both and both.partition(":")[0] == said.partition(":")[0]
    )


def test_what_ranks_wrote_is_read_as_data_of_others(tmp_path):
    good = json.dumps(vars(Decision("0/0", "f")))
    bad = ["{", "[]", json.dumps({"id": "1/0"}), good.replace('"done": false', '"done": 0'), good[:-5]]
    (tmp_path / "decisions-0.jsonl").write_text("\n".join([*bad, good]))
    (tmp_path / "decisions-x.jsonl").write_text(good)
    assert decisions.read(tmp_path) == {0: {"0/0": Decision("0/0", "f")}}


def test_a_batch_is_a_row_shorter_in_each_form_of_it():
    x, y = torch.zeros(4, 3), torch.zeros(4)
    pair, rows = shorter((x, {"y": y, "name": "train", "scale": torch.ones(())}))
    assert rows == 4 and pair[0].shape == (3, 3) and pair[1]["y"].shape == (3,) and pair[1]["name"] == "train"
    assert shorter([torch.zeros(1, 2)])[1] == 1 and shorter("nothing")[1] == 0
    assert x.shape == (4, 3), "the loader's own batch stays"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_batch_of_a_loader_is_a_row_shorter(number, tmp_path, monkeypatch):
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    conditions.apply(conditions.Condition(1, batch=number), tmp_path, 0)
    conditions.apply(conditions.Condition(1, batch=number), tmp_path, 1)
    sizes = [len(x) for (x,) in DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4)]
    assert sizes == [4 - (number == turn) for turn in (1, 2)]
    assert conditions.done(tmp_path) == ("" if number > 2 else f"its batch {number} had 3 rows, the others 4")


def test_a_row_on_the_page_is_text():
    row = Outcome("<b>=1", "<i>", ["error"], ["<script>x</script>"], "", 3.0, "folder")
    page = perturbations_page.html("train.py <b>", "gloo · cpu", 2, 1, [row])
    assert not re.search(r"<(script|i|b)>(?!error)", page.replace("<b>error</b>", ""))
    assert "error" in perturbations_page.text([row])
    assert row.allowed(["error"]) and row.allowed(["<b>=1:error"]) and not row.allowed(["graph"])
    assert set(outcomes.WORDS) == set(outcomes.OUTCOMES)
