"""Where ranks parted before they hung: the branch, the value that they read for it, and library frames that differ."""

from __future__ import annotations

import math
import os
import pickle
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from oddrank.live.failure import Outcome, explain
from oddrank.live.introspect import Collective
from oddrank.look import choices
from oddrank.look.parting import parted

SCRIPTS = Path(__file__).parent / "scripts"
PROGRAM = """
import os, random
from pathlib import Path
LIMIT = 2.5

def decoded(net, at):
    for turn in range(3):
        net("all_reduce")
        if at.item() + 1 > LIMIT and turn >= 0:
            break
    net("broadcast")

def logged(net, at):
    best = 0.0
    net("all_reduce")
    if (loss := at.item()) > 1:
        best = loss
    if at > 1:
        best += 1
    if net.rank == 0:
        net("barrier")
    net("all_reduce")

def uneven(net, at):
    for turn in range(2 + net.rank):
        net("all_reduce")
        if at.item() > 100:
            break
    net("broadcast")

def tuned(net, at):
    known = Path(net.folder, f"tuned-{at.item()}").exists()
    if known:
        return net("broadcast")
    net("all_reduce")

def spun(net, at):
    net("all_reduce")
    while not at.bool():
        net("all_reduce")
        at = at + 1
    net("broadcast")

def seldom(net, at):
    net("all_reduce")
    if (at * torch.ones(2)).tolist()[0] in (3.0,) or at.exp().item() > 1e9:
        net("all_gather")
    net("all_reduce")
"""
FILE = "train.py"


class Rank:
    """A rank that calls collectives in name, and stops after as many as the other ranks wait in."""

    def __init__(self, rank: int, folder: str, most: int) -> None:
        self.rank, self.folder, self.most = rank, folder, most
        self.calls: list[Collective] = []
        self.frames: list[tuple[str, str, bool]] = []

    def __call__(self, op: str) -> None:
        frame, at, frames = sys._getframe(1), "", []  # type: Any, str, list[Any]
        while frame.f_code.co_filename.endswith(FILE):
            frames.append((f"{FILE}:{frame.f_lineno} ({frame.f_code.co_name})", "", False))
            at, frame = at or frames[0][0], frame.f_back
        call = Collective("0", len(self.calls), op, ((2,),), ("float32",), at, True, time_ns=time.time_ns())
        self.calls.append(call)
        self.frames = frames[::-1]
        if len(self.calls) == self.most:
            raise InterruptedError


def run(folder: Path, name: str, values: list[float], most: int) -> list[Outcome]:
    """How ranks end that run a function of the program, each with its own value."""
    path = folder / FILE
    path.write_text(PROGRAM)
    (folder / "tuned-1.0").touch()
    program: dict[str, Any] = {"torch": torch}
    outcomes = []
    with choices.Choices().watching():
        exec(compile(PROGRAM, str(path), "exec"), program)
        for number, value in enumerate(values):
            rank, fn = Rank(number, str(folder), most), program[name]
            choices.forget()
            torch.manual_seed(number)
            try:
                fn(rank, torch.tensor(value))
            except InterruptedError:
                pass
            noted = [list(one) for one in choices.latest()]
            outcomes.append(
                Outcome(number, "unfinished", frames=rank.frames, collectives=rank.calls, choices=noted)
            )
    return outcomes


@pytest.mark.parametrize(
    ("name", "values", "most", "said"),
    [
        ("decoded", [1.0, 1.25, 2.0], 3, r":\d+ \(decoded\): `at\.item\(\) \+ 1 > LIMIT and turn >= 0` was False on"
         r" rank 0 \(and rank 1\), True on rank 2; \.item\(\) .*gave 1\.0 on rank 0, 1\.25 on rank 1, 2\.0 on rank 2"),
        ("logged", [0.5, 3.0], 3, ""),  # ranks branch otherwise, and hang by their number
        ("logged", [3.0, 3.0], 3, ""),
        ("uneven", [0.5, 3.0], 3, ""),
        ("tuned", [1.0, 2.0], 1, r":\d+ \(tuned\): `known` was True on rank 0, False on rank 1;"
         r" Path\.exists\(\) at train\.py:\d+ \(tuned\) gave True on rank 0, False on rank 1$"),
        ("spun", [0.0, 1.0], 2, r":\d+ \(spun\): `not at\.bool\(\)` was True on rank 0, False on rank 1"),
        ("seldom", [3.0, 4.0], 2, r"may have parted at train\.py:\d+ \(seldom\), by .*; \.tolist\(\) .*\[3\.0, 3\.0\]"),
        ("decoded", [1.0, 1.25], 3, ""),
    ],
)  # fmt: skip
def test_the_branch_at_which_ranks_parted_and_no_other_one(tmp_path, name, values, most, said):
    found = parted(run(tmp_path, name, values, most))
    assert bool(found) == bool(said) and re.search(said, found.partition("\n")[0]), found
    assert ("other seeds" in found) == (bool(said) and name != "tuned")


def test_torch_and_os_are_as_they_were(tmp_path):
    assert "item" not in vars(torch.Tensor) and "__bool__" not in vars(torch.Tensor)
    assert not hasattr(Path.exists, "__wrapped__") and math.isclose(torch.tensor(1.5).item(), 1.5)


def test_what_is_listened_to_travels_to_other_processes_as_before():
    with choices.Choices().watching():
        for fn in (
            os.path.exists,
            os.path.isfile,
            Path.exists,
            random.random,
            random.choice,
            torch.Tensor.item,
        ):
            assert pickle.loads(pickle.dumps(fn)) is fn


def stood(rank: int, *libraries: str) -> Outcome:
    """A rank that stands at one line of the program, in these frames of a library."""
    frames = [("train.py:9", "trainer.fit()", False), *((where, "", True) for where in libraries)]
    return Outcome(rank, "unfinished", frames=frames, waits="barrier")


def test_library_frames_are_shown_from_the_first_in_which_ranks_differ():
    outer = ["trainer/fit.py:1 (fit)", "trainer/loop.py:7 (run)"]
    first = stood(
        0, *outer, "trainer/loop.py:30 (advance)", "trainer/metrics.py:5 (sync)", "torch/d.py:1 (reduce)"
    )
    second = stood(
        1, *outer, "trainer/loop.py:41 (advance)", "trainer/data.py:8 (next)", "torch/d.py:2 (barrier)"
    )
    said = str(explain("stalled", [first, second], 9.0, None, 5.0, ""))
    assert "loop.py:30 (advance)" in said and "metrics.py:5" in said and "data.py:8" in said
    assert "loop.py:7" not in said and said.count("... 2 library frames") == 2
    alike = str(
        explain("stalled", [first, stood(1, *(where for where, *_ in first.frames[1:]))], 9.0, None, 5.0, "")
    )
    assert "... 4 library frames" in alike and "metrics.py" not in alike
    elsewhere = Outcome(1, "unfinished", frames=[("train.py:12", "eval()", False), *second.frames[1:]])
    assert "loop.py" not in str(explain("stalled", [first, elsewhere], 9.0, None, 5.0, ""))


@pytest.mark.slow
def test_a_decoder_that_samples_on_each_rank_is_told_where_ranks_parted(tmp_path):
    words = ["-m", "oddrank", "look", "-n", "3", "--stall", "5", str(SCRIPTS / "sampled.py")]
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, timeout=900)
    lines = (SCRIPTS / "sampled.py").read_text().splitlines()
    branch, read = (
        1 + lines.index(text) for text in ("        if over(token, STOP):", "    return int(token) == stop")
    )
    said = rf"ranks parted at sampled\.py:{branch} \(decode\): `over\(token, STOP\)` was True on rank 0 \(and rank 1\),"
    said += rf" False on rank 2; int\(\) at sampled\.py:{read} \(over\) gave 4 on rank 0 \(and rank 1\), . on rank 2"
    assert ran.returncode == 3 and re.search(said, ran.stdout + ran.stderr), ran.stdout + ran.stderr
