"""A machine on which nothing is installed: the package's sources alone, and Python's standard library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flight_records import DATA

import oddrank

# what a user types is `python -m oddrank`; the site-packages of this Python are left out, and what was imported is told
ALONE = """
import atexit, sys

def tell():
    known = (*sys.stdlib_module_names, "oddrank", "__main__")
    others = {name.partition(".")[0] for name in sys.modules} - set(known)
    print("others:", sorted(name for name in others if not name.startswith("_sysconfigdata")))

atexit.register(tell)
sys.path.insert(0, sys.argv.pop(1))
import runpy
runpy.run_module("oddrank", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(oddrank.__file__).parent, folder / "oddrank", ignore=leave)
    return folder


@pytest.mark.parametrize(
    ("job", "verdict"),
    [
        (
            "captured/cache_hang",
            "DIFFERENCE: rank 1 has not made collective 1 of default_pg",
        ),  # of every kind a file
        (
            "recorded/1x-nvidia-h100-80gb-hbm3-2026-11-26/dumps/torch-2.13.0/order",
            "DIFFERENCE: the ranks differ at collective 5 of default_pg",
        ),
    ],
)
def test_the_verdict_needs_no_package(copy, job, verdict, tmp_path):
    command = [
        sys.executable,
        "-S",
        "-I",
        "-c",
        ALONE,
        str(copy),
        "postmortem",
        str(DATA / job),
        "--out",
        "out",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert verdict in done.stdout and done.stdout.endswith("page: out/index.html\nothers: []\n"), done.stdout
    page = (tmp_path / "out" / "index.html").read_text()
    assert verdict.partition(": ")[2] in page
    if "order" in job:
        assert "torchfrtrace: torch is not installed" in page
    else:
        assert "The source, and what each rank compiled of it" in page
