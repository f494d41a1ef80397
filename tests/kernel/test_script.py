"""`labkit program`: a lesson's program as a plain script, under torchrun and through `oddrank look`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import cli, files
from labkit.lessons import cells
from labkit.lessons.standalone import MAIN, script

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def tagged() -> list[str]:
    found = []
    for path in files.lessons():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        found += [path.stem for cell in notebook["cells"] if MAIN in cell["metadata"].get("tags", ())]
    return found


def test_a_lesson_without_a_main_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    without = next(path.stem for path in files.lessons() if path.stem not in tagged())
    assert cli.main(["program", files.number(without)]) == 2
    assert f"lesson {without} has no" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("lesson", tagged())
def test_a_lessons_script_runs_under_torchrun_without_labkit(lesson: str, tmp_path: Path) -> None:
    assert tagged().count(lesson) == 1
    path = tmp_path / "program.py"
    path.write_text(script(lesson))
    # no labkit, no course: they cannot be imported
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    for name in ("labkit", "course"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a script gets by without it')\n")
    done = subprocess.run(
        [*TORCHRUN, str(path)], capture_output=True, text=True, timeout=300, env=env, cwd=tmp_path
    )
    faulty = lesson == "18_repair_it"  # it is delivered with faults, and its script is a gate
    assert done.returncode == int(faulty) and ("no  gradients" in done.stdout) == faulty, done.stderr[-3000:]
    assert done.stdout.strip()


@pytest.mark.slow
def test_the_script_of_lesson_04_counts_what_the_lesson_counts_and_look_sees_its_breaks(
    tmp_path: Path,
) -> None:
    (tmp_path / "cliff.py").write_text(script("04_graph_break_cliff"))
    look = [
        *TORCHRUN,
        "-m",
        "oddrank",
        "look",
        "--out",
        "page",
        "--step",
        "forward_once",
        "cliff.py",
        "disabled",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(look, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "page" / "index.html").read_text()
    assert "(RowParallelLinear.forward)" in page and "function disabled" in page
    assert list(cells("04_graph_break_cliff", MAIN))


@pytest.mark.slow
def test_the_script_of_lesson_09_raises_on_every_rank_where_the_ranks_compile_unequally(
    tmp_path: Path,
) -> None:
    (tmp_path / "versions.py").write_text(script("09_guards_and_shapes"))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*TORCHRUN, "versions.py", "odd"], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=env
    )
    assert done.returncode and done.stderr.count("RuntimeError: compiles by rank: [4, 8]") == 2
