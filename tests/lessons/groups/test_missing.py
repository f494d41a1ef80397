"""Who reports a rank that does not come, with a launcher and without: what lesson 01's table says beyond its cells."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys

import pytest

from course.groups.arrivals import Arrival, meet

SIZE = 3
COUNTED = r"2/3 clients joined"
NO_SERVER = r"timed out after 5000ms while trying to connect"
NO_KEY_OF_0 = r"wait timeout after 5000ms, keys: \S+cpu//0/0$"


def join(backend):
    """Make the default group; `no_keys` is a backend that leaves no address in the store, as NCCL does."""
    import datetime

    import torch.distributed as dist

    class NoKeys(dist.ProcessGroup):
        pass

    def made(store, rank, size, timeout):
        return NoKeys(rank, size)

    if backend == "no_keys":
        dist.Backend.register_backend("no_keys", made, devices=["cpu"])
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "backend", "expected"),
    [
        (0, "gloo", {1: NO_SERVER, 2: NO_SERVER}),
        (1, "no_keys", {0: COUNTED, 2: None}),
    ],
)
def test_without_a_launcher_rank_0_counts_with_any_backend(missing, backend, expected):
    def begins():
        join(backend)

    found = meet(begins, [Arrival(rank, SIZE) for rank in expected], patience=60).tables["processes"]
    for rank, outcome, said in zip(found["rank"], found["outcome"], found["said"], strict=True):
        words = expected[rank]
        assert (outcome == "joined" and words is None) or re.search(words, said), (rank, outcome, said)


# no limit begins before all processes are up, and none ends before the last has answered
STARTED = """
import json, os, sys, time
from pathlib import Path

rank, size, missing = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])

def together(name):
    Path(f"{name}.{rank}").touch()
    while len(list(Path().glob(f"{name}.*"))) < size:
        time.sleep(0.01)

import torch.distributed as dist
together("up")
if rank != missing:
    try:
        said = join(sys.argv[2])
    except dist.DistError as error:
        said = str(error).splitlines()[0]
    print(json.dumps([rank, said]), flush=True)
together("over")
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "backend", "expected"),
    [
        (0, "gloo", {1: NO_KEY_OF_0, 2: NO_KEY_OF_0}),
        (1, "no_keys", {0: None, 2: None}),
    ],
)
def test_under_a_launcher_no_rank_counts_and_all_name_the_missing_key(tmp_path, missing, backend, expected):
    script = tmp_path / "script.py"
    script.write_text(inspect.getsource(join) + STARTED)
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node {SIZE}".split()
    command = [sys.executable, *torchrun, script, str(missing), backend]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=600)
    said = dict(map(json.loads, done.stdout.splitlines()))
    assert set(said) == set(expected), done.stderr[-2000:]
    for rank, words in expected.items():
        assert (said[rank] is None) if words is None else re.search(words, said[rank]), said


def barred():
    import datetime
    import time

    import torch.distributed as dist

    group = dist.new_group(timeout=datetime.timedelta(seconds=6))
    dist.barrier()  # all begin at once
    if dist.get_rank() == 0:
        time.sleep(9)  # the last limit is 6
        return ""
    try:
        dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=2))
    except RuntimeError as error:
        return str(error)


@pytest.mark.slow
def test_rank_0_is_missed_in_a_monitored_barrier_at_the_groups_timeout_only(three):
    found = three.run(barred, stall=None)
    for rank in (1, 2):
        assert "check rank 0 logs" in found[rank] and "Timed out waiting 6000ms" in found[rank]
