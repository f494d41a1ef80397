"""`oddrank look` from its command line: a page, a gate, and an end in order, with scripts that know nothing of it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import quoted
from oddrank.look import program
from oddrank.look.command import folder_for

from oddrank import command as cli

SCRIPTS = Path(__file__).parent / "scripts"


def command(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    start = launcher or (sys.executable, "-m", "oddrank", "look")
    return subprocess.run([*start, *words], capture_output=True, text=True, cwd=folder, timeout=600)


@pytest.fixture
def look(tmp_path, monkeypatch, capsys):
    """The command in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        capsys.readouterr()
        status = cli.main(["look", *words])
        return subprocess.CompletedProcess(words, status, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "oddrank look needs a script, or -m MODULE"),
        ("nowhere.py", "there is no script nowhere.py"),
        ("-m nowhere.train", "there is no module nowhere.train"),
        ("--against none.json SCRIPT", "cannot read none.json"),
        ("--against SCRIPT SCRIPT", "is no baseline"),
        ("--out . SCRIPT", "is there already and not empty"),
        ("--trace something SCRIPT", "something is there already: nothing is overwritten"),
        ("--trace nowhere/t.json SCRIPT", "there is no folder"),
        ("--steps 0 SCRIPT", "argument --steps: must be a whole number from 1"),
        ("-n 0 SCRIPT", "argument -n: must be a whole number from 1"),
        ("--backend mpi SCRIPT", "argument --backend: invalid choice"),
        ("--perturb -n 1 SCRIPT", "--perturb needs two ranks or more"),
        ("--perturb --only weather SCRIPT", "--only weather: the differences are hash-seed, cold-cache"),
        (
            "--perturb --allow weather SCRIPT",
            "--allow weather: give one of hang, error, collectives, numbers, graph",
        ),
        ("--perturb --allow weather:graph SCRIPT", "--allow weather:graph: give one of"),
        ("--perturb --perturb-rank 2 SCRIPT", "--perturb-rank 2: ranks are 0 to 1"),
        ("--perturb --perturb-env =1 SCRIPT", "--perturb-env =1: give NAME=VALUE"),
        ("--perturb --save base.json SCRIPT", "--save is of one run"),
        ("--perturb --perturb-delay 0 SCRIPT", "--perturb-delay: must be a number from 0.1"),
        ("--torch . --torch . --perturb-rank 0 SCRIPT", "--perturb-rank is for --perturb"),
        ("--torch 2.13.0 SCRIPT", "--torch is given for each version to compare, at least twice"),
        ("--torch nowhere --torch . SCRIPT", "--torch nowhere: it is no version such as 2.15.0"),
        ("--torch . --torch . SCRIPT", "--torch .: there is no interpreter in it"),
        ("--torch 1.9.0 --torch 2.13.0 SCRIPT", "oddrank supports torch"),
        ("--torch 2.13.0 --torch 2.15.0 --requirements no.txt SCRIPT", "--requirements no.txt: there is no"),
        ("--torch . --torch . --trace t.json SCRIPT", "--trace is for one run"),
        ("--torch . --torch . --repeat 1 SCRIPT", "argument --repeat: must be a whole number from 2"),
        ("--torch . --torch . --allow hang SCRIPT", "--allow hang: give one of breaks, given-up"),
        ("--torch . --torch . --perturb SCRIPT", "--torch compares versions, --perturb compares ranks"),
        ("--allow graphs SCRIPT", "--allow is for --torch and --perturb"),
        ("--with numpy SCRIPT", "--with is for --torch"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    script = str(SCRIPTS / "trouble.py")
    assert cli.main(["look", *(script if word == "SCRIPT" else word for word in words.split())]) == 2
    found = capsys.readouterr()
    assert found.err.startswith("oddrank: ") and sentence in found.err and "Traceback" not in found.err
    assert [path.name for path in tmp_path.iterdir()] == ["something"], "refused before anything begins"


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "oddrank", "look")


@pytest.mark.slow
@pytest.mark.guard
def test_from_a_break_in_a_decoder_to_the_gate(look, tmp_path):
    """Under torchrun: the page names the print, and the gate notices it, and the branch of one rank.

    Neither is Inductor's doing, so this compiles without it.
    """
    files = ("--out", "page", "--source", "--save", "now.json", "--trace", "t.json")
    script = [str(SCRIPTS / "decoder.py"), *"tp --layers 1 --backend aot_eager --print --branch".split()]
    ran = command(tmp_path, *files, *script, launcher=(sys.executable, *TORCHRUN))
    said = ran.stdout
    assert ran.returncode == 0 and "decoder.py: 3 steps recorded  [gloo · cpu]" in said, said + ran.stderr
    assert quoted.pattern(
        "oddrank/docs/look.md", "oddrank look --out page", r"[\d.]+ ms of a step \(\d+%\)"
    ).search(said)
    differs = re.search(r"28 ≠.*┃ +x = x \* 1\.0", said)
    broke = re.search(r"✂ graph ends, [\d.]+× a step: cannot trace builtin operator\s+`print`", said)
    assert differs and broke, said
    body = (tmp_path / "page" / "index.html").read_text()
    first = body.partition("What to do first")[2].partition("The strip of one step")[0]
    assert "decoder.py:26 (Chatty.forward)" in first and "hint" in first and "on 2 ranks" in body
    assert body.index("ranks differ</span>") < body.index("What to do first")
    assert "The graph of" in body and not re.search(r"src=['\"](?!data:)", body)
    about = json.loads((tmp_path / "page" / "rank-1.json").read_text())["provenance"]
    assert (about["rank"], about["world_size"], about["launched"]) == (1, 2, "torchrun")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1} and "trace: t.json" in said

    shutil.rmtree(tmp_path / "page" / "logs")  # no report of tlparse for each page

    def gate(base, out):
        (tmp_path / "base.json").write_text(json.dumps(base))
        return look("--merge", "page", "--out", out, "--against", "base.json")

    now = json.loads((tmp_path / "now.json").read_text())
    assert now["unit"] == "step" and now["ranks"]["0"]["collectives"] > 0 and now["ranks differ"]
    same = gate(now, "same")
    assert same.returncode == 0 and "gate passed" in same.stdout, same.stdout
    for mine in now["ranks"].values():  # as it was before the print and the branch
        assert any("Failed to trace builtin operator print" in where for where in mine["where"])
        mine |= {"breaks": 0.0, "graphs": 1.0, "where": {}}
    failed = gate(now | {"ranks differ": ""}, "failed")
    assert failed.returncode == 1, failed.stderr
    told = failed.stdout.partition("gate failed")[2]
    assert "Chatty.forward): Failed to trace builtin operator print" in told and "ranks differ" in told


def test_a_run_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [folder_for(None, "train.py").name for _ in range(3)]
    assert made == ["look-train", "look-train-2", "look-train-3"]
    (tmp_path / "look-train" / "index.html").touch()
    with pytest.raises(ValueError, match="not empty: nothing is overwritten"):
        folder_for(Path("look-train"), "train.py")


@pytest.mark.parametrize(("name", "count"), [("step", 3), ("Trainer.step", 1), ("Other.step", 0)])
def test_the_function_that_is_a_step_is_found_by_its_name_or_that_of_its_class(name, count):
    tree = ast.parse("def step(): 0\nclass Trainer:\n  def step(self): 0\ndef inner():\n  def step(): 0")
    assert program._decorate(tree, name) == bool(count)
    assert sum(bool(getattr(node, "decorator_list", [])) for node in ast.walk(tree)) == count


@pytest.mark.slow
def test_a_script_without_steps_is_a_request_that_cannot_be_met(look, tmp_path):
    (tmp_path / "plain.py").write_text("import sys\nprint('ran', sys.argv[1:], __name__, __file__)\n")
    done = look("-n", "1", "plain.py", "--lr", "3")
    assert done.returncode == 2 and "called nothing that torch.compile made" in done.stderr
    assert "ran ['--lr', '3'] __main__" in done.stdout
    named = look("-n", "1", "--step", "nowhere", "plain.py")
    assert named.returncode == 2 and "plain.py defines no such function" in named.stderr


FINDER = """\
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{folder!r}]) if name == "edited" else None

sys.meta_path.append(Finder)
"""


@pytest.mark.slow
def test_a_module_of_an_editable_install_is_found(tmp_path, monkeypatch):
    """Such an install puts a finder of its own into `sys.meta_path` when Python starts (PEP 660)."""
    source, site, here = (tmp_path / name for name in ("src", "site", "here"))
    for folder in (source / "edited", site, here):
        folder.mkdir(parents=True)
    (source / "edited" / "train.py").write_text(
        "import sys\nprint('ran', sys.argv[1:], __name__, __spec__.name)\n"
    )
    (site / "sitecustomize.py").write_text(FINDER.format(folder=str(source)))
    monkeypatch.setenv("PYTHONPATH", str(site))
    script = (
        str(Path(sys.executable).parent / "oddrank"),
        "look",
    )  # python -m finds modules of this folder anyway
    done = command(here, "-n", "1", "-m", "edited.train", "--lr", "3", launcher=script)
    assert done.returncode == 2 and "ran ['--lr', '3'] __main__ edited.train" in done.stdout, done.stderr


SEEDS = """\
import json, os, random, sys
import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine = [torch.initial_seed(), torch.rand(1).item(), random.random(), float(np.random.rand())]
every = [None] * dist.get_world_size()
dist.all_gather_object(every, mine)
step = torch.compile(lambda x: x + 1, backend="eager")
for _ in range(3):
    step(torch.ones(2))
if dist.get_rank() == 0:
    print("DREW", json.dumps(every))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_a_program_without_a_seed_draw_numbers_of_their_own(look, tmp_path):
    """As under torchrun: torch, `random` and numpy."""
    (tmp_path / "seeds.py").write_text(SEEDS)
    done = look("--skip", "0", "seeds.py")
    assert done.returncode == 0, done.stderr
    drew = json.loads(re.search(r"DREW (.+)", done.stdout)[1])
    assert [len(set(numbers)) for numbers in zip(*drew, strict=True)] == [2] * 4, drew
