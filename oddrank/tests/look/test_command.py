"""`oddrank look` from its command line: a page, a gate, and an end in order, with scripts that know nothing of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import quoted
from processes import left

from oddrank import command as cli

SCRIPTS = Path(__file__).parent / "scripts"


def command(folder: Path, *words: str, launcher: tuple[str, ...] = (sys.executable, "-m", "oddrank", "look")):
    """Run the command in a process of its own."""
    return subprocess.run(
        [*launcher, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
    )


@pytest.fixture
def look(tmp_path, monkeypatch, capsys):
    """The command in this process, whose zygote has imported torch already."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        capsys.readouterr()
        status = cli.main(["look", *words])
        return subprocess.CompletedProcess(words, status, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "oddrank look needs a script, or -m MODULE"),
        (["nowhere.py"], "there is no script nowhere.py"),
        (["-m", "nowhere.train"], "there is no module nowhere.train"),
        (["--against", "none.json", "SCRIPT"], "cannot read none.json"),
        (["--against", "SCRIPT", "SCRIPT"], "is no baseline"),
        (["--out", ".", "SCRIPT"], "is there already and not empty"),
        (["--trace", "something", "SCRIPT"], "something is there already: nothing is overwritten"),
        (["--trace", "nowhere/t.json", "SCRIPT"], "there is no folder"),
        (["--steps", "0", "SCRIPT"], "argument --steps: must be a whole number from 1"),
        (["-n", "0", "SCRIPT"], "argument -n: must be a whole number from 1"),
        (["--backend", "mpi", "SCRIPT"], "argument --backend: invalid choice"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    script = str(SCRIPTS / "trouble.py")
    assert cli.main(["look", *(script if word == "SCRIPT" else word for word in words)]) == 2
    found = capsys.readouterr()
    assert found.err.startswith("oddrank: ") and sentence in found.err and "Traceback" not in found.err
    assert [path.name for path in tmp_path.iterdir()] == ["something"], "refused before anything begins"


@pytest.mark.slow
@pytest.mark.guard
def test_from_a_break_in_a_decoder_to_the_gate(look, tmp_path):
    """The page names the print, and the gate notices it, and the branch of one rank.

    Neither is Inductor's doing, so this compiles without it; the decoder with FSDP is compiled by it.
    """
    script = (str(SCRIPTS / "decoder.py"), "tp", "--layers", "1", "--backend", "aot_eager")
    plain = look("--save", "base.json", *script)
    assert plain.returncode == 0, plain.stderr
    base = json.loads((tmp_path / "base.json").read_text())
    assert base["unit"] == "step" and base["ranks"]["0"]["collectives"] > 0
    assert (tmp_path / "look-decoder" / "index.html").exists()

    words = ("--out", "page", "--source", "--save", "more.json", "--against", "base.json")
    more = look(*words, *script, "--print", "--branch")
    assert more.returncode == 1, more.stderr
    now = json.loads((tmp_path / "more.json").read_text())
    for rank, before in base["ranks"].items():
        assert now["ranks"][rank]["operations"] == before["operations"], "neither adds a collective"
    failed = more.stdout.partition("gate failed")[2]
    assert "Chatty.forward): Failed to trace builtin operator print" in failed
    assert "ranks differ" in failed
    assert quoted.pattern(
        "oddrank/docs/look.md", "oddrank look --out page", r"[\d.]+ ms of a step \(\d+%\)"
    ).search(more.stdout)
    body = (tmp_path / "page" / "index.html").read_text()
    first = body.partition("What to do first")[2].partition("The strip of one step")[0]
    assert "decoder.py:26 (Chatty.forward)" in first and "hint" in first
    assert "The graph of" in body
    differs = re.search(r"28 ≠.*┃ +x = x \* 1\.0", more.stdout)
    broke = re.search(r"✂ graph ends, [\d.]+× a step: cannot trace builtin operator\s+`print`", more.stdout)
    assert differs and broke, more.stdout
    assert body.index("ranks differ</span>") < body.index("What to do first")
    assert not re.search(r"src=['\"](?!data:)", body)


@pytest.mark.slow
def test_a_program_that_did_not_change_passes_its_gate_and_nothing_is_overwritten(look, tmp_path):
    script = (str(SCRIPTS / "trouble.py"), "none")
    assert look("--save", "base.json", *script).returncode == 0
    again = look("--against", "base.json", *script)
    assert again.returncode == 0 and "gate passed" in again.stdout, again.stdout
    assert (tmp_path / "look-trouble-2").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("words", ["ddp --layers 1 --backend aot_eager", "fsdp"])
def test_other_decoders_are_seen_as_well(look, words, tmp_path):
    done = look("--out", "page", str(SCRIPTS / "decoder.py"), *words.split(), "--print")
    assert done.returncode == 0, done.stderr
    body = (tmp_path / "page" / "index.html").read_text()
    assert "decoder.py:26 (Chatty.forward)" in body.partition("What to do first")[2].partition("<h2>")[0]
    assert "All ranks did the same in what was compared" in body
    assert ("parameters under DDP are equal" in body) == words.startswith("ddp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("raise", "rank 1 raised ValueError: the loss is nan"),
        ("exit", "rank 1 raised SystemExit: 7"),
        ("die", "rank 1 died: exit code 5"),
        ("hang", "no end within"),
        ("leave", "rank 1 had ended the script by then, and the others called a further collective"),
        ("calm", ""),
    ],
)
def test_trouble_is_reported_and_leaves_no_process(look, kind, said, tmp_path, monkeypatch):
    mark = f"LABKIT_TEST_LOOK={kind}-{os.getpid()}-{time.time()}"
    monkeypatch.setitem(os.environ, *mark.split("=", 1))
    limits = ["--timeout", "25" if kind == "hang" else "120", "--stall", "90" if kind == "hang" else "5"]
    words = ("--out", "page", *limits, str(SCRIPTS / "trouble.py"), kind)
    done = command(tmp_path, *words) if kind in ("hang", "calm") else look(*words)
    assert done.returncode == (3 if said else 0), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    if kind == "leave":
        assert "at collective 9:\n    rank 0  all_reduce" in done.stderr, done.stderr
    if kind in ("raise", "exit", "hang"):
        assert re.search(r"trouble.py:\d+ \(trouble\)", done.stderr), "the culprit's line"
    assert "3 forwards recorded" in done.stdout, "what was recorded before is worth a page"
    assert ("The script failed after" in (tmp_path / "page" / "index.html").read_text()) == bool(said)
    assert left(mark) == []


@pytest.mark.slow
def test_a_script_without_steps_is_a_request_that_cannot_be_met(look, tmp_path):
    (tmp_path / "plain.py").write_text("import sys\nprint('ran', sys.argv[1:], __name__, __file__)\n")
    done = look("-n", "1", "plain.py", "--lr", "3")
    assert done.returncode == 2 and "called nothing that torch.compile made" in done.stderr
    assert "ran ['--lr', '3'] __main__" in done.stdout
    (tmp_path / "mine").mkdir()
    (tmp_path / "plain.py").rename(tmp_path / "mine" / "plain.py")
    labkit = (
        str(Path(sys.executable).parent / "oddrank"),
        "look",
    )  # python -m finds modules of this folder anyway
    module = command(tmp_path, "-n", "1", "-m", "mine.plain", "--lr", "3", launcher=labkit)
    assert module.returncode == 2 and "ran ['--lr', '3'] __main__" in module.stdout
    named = look("-n", "1", "--step", "nowhere", "mine/plain.py")
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
    (source / "edited" / "train.py").write_text("print('ran', __name__, __spec__.name)\n")
    (site / "sitecustomize.py").write_text(FINDER.format(folder=str(source)))
    monkeypatch.setenv("PYTHONPATH", str(site))
    labkit = (str(Path(sys.executable).parent / "oddrank"), "look")
    done = command(here, "-n", "1", "-m", "edited.train", launcher=labkit)
    assert "ran __main__ edited.train" in done.stdout, done.stderr


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
    """As under torchrun: torch, `random` and numpy, on every rank and in every run."""
    (tmp_path / "seeds.py").write_text(SEEDS)
    drew = []
    for _ in range(2):
        done = look("--skip", "0", "seeds.py")
        assert done.returncode == 0, done.stderr
        drew += json.loads(re.search(r"DREW (.+)", done.stdout)[1])
    assert len(drew) == 4
    for numbers in zip(*drew, strict=True):
        assert len(set(numbers)) == 4, drew
