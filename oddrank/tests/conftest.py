"""Real traces of a small program, made once: what a user has in a folder after a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

# the collective stands at line 18, and nothing else in the program calls one of this name in a graph
PROGRAM = """\
import json, os, sys, torch, torch.distributed as dist, torch.nn as nn
from oddrank.record import record


@torch.compiler.disable
def hidden(x):
    dist.all_reduce(x)
    return x


class Block(nn.Module):
    def forward(self, x):
        y = self.linear(x).relu()
        y = hidden(y)
        if dist.get_rank() == 0:
            print("hello")
        y = y * 2
        dist.all_reduce(y)
        return x + y

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, folder = dist.get_rank(), os.environ["FOLDER"]
net = torch.compile(Net(), backend=os.environ["BACKEND"])
x = torch.randn(4, 8)
with record() as rec:
    for _ in range(2):
        net(x)
    with rec.forward():
        net(x)
with torch.profiler.profile() as profile:
    net(x)
profile.export_chrome_trace(f"{folder}/step_{rank}.json")
said = {name: getattr(rec, name).dicts() for name in ("compiles", "marks", "counts")}
with open(f"{folder}/record_{rank}.txt", "w") as file:
    json.dump(said, file)
dist.destroy_process_group()
"""


def run_traced(folder: Path, command: list[str], env: Mapping[str, str]) -> Path:
    """Run PROGRAM in a folder with TORCH_TRACE; the traces are in `traces` there."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    own = {"TORCH_TRACE": str(folder / "traces"), "FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    inherited = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, *command, str(folder / "program.py")],
        env={**inherited, **own, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """Two ranks under torchrun: `traces`, a profile of one step `step_N.json`, and what `record()` said there."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return run_traced(tmp_path_factory.mktemp("job"), torchrun, {"BACKEND": "aot_eager"})


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """One process, Inductor, and its provenance."""
    env = {"BACKEND": "inductor", "INDUCTOR_PROVENANCE": "1"}
    return run_traced(tmp_path_factory.mktemp("alone"), [], env)
