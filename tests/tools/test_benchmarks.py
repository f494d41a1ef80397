"""The programs in benchmarks/ run, on as few rounds as they take. No test asserts a time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from labkit import files

FEWEST = {
    "contract": ["--rounds", "2", "--calls", "1"],
    "look": ["--rounds", "2", "--steps", "3", "--sizes", "small"],
    "recording": ["--rounds", "2", "--calls", "1", "--widths", "64"],
    "shm": ["--rounds", "2", "--calls", "8"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEWEST)
def test_a_benchmark_runs_and_prints_what_it_measured(name, tmp_path):
    command = [sys.executable, files.ours(f"benchmarks/{name}.py"), *FEWEST[name]]
    keep = [] if name == "shm" else ["--save", str(tmp_path)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *keep], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
    )
    # 1 is a limit that was passed, which so few rounds tell nothing of
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    assert len(done.stdout.splitlines()) > 2
    assert not keep or [file.name for file in tmp_path.glob("*.json")] == [f"{name}.json"]
