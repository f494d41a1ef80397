"""`labkit run`: a notebook's cells with other parameters, its reports as data, and how it ends where a cell fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import pytest

from labkit import files
from labkit.cli import main
from labkit.lessons import execution
from labkit.lessons.parameters import parameters
from labkit.report import Report

pytestmark = pytest.mark.kernel

PARAMETERS = """\
ROWS = 2  # rows of the table; 1 to 9
NAMES = ["a", "b"]  # names of columns; of a, b, c
"""
REPORT = """\
import pandas as pd
from labkit import Report

table = pd.DataFrame({name: range(ROWS) for name in NAMES}, index=pd.Index(range(ROWS), name="row"))
failed = [f"ValueError at {pd.__path__[0]}/core/frame.py:7"]
Report("demo", "A demonstration", "gloo · cpu", {"main": table}, ["a is faster than b"], notes=failed)
"""
RECORDED = "Report('old', 'Old', 'recorded on a machine, 2026-01-01', {'main': table})"
HOME = "import os\nprint(os.environ['LABKIT_HOME'])"


def notebook(folder: Path, *sources: str) -> Path:
    cells = [v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})]
    cells += [v4.new_markdown_cell("Why?"), *map(v4.new_code_cell, sources)]
    path = folder / "99_demo.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    nbformat.write(made, path)
    return path


def test_reports_are_kept_as_data_with_the_parameters_that_made_them(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    lines: list[str] = []
    path = notebook(tmp_path, REPORT, RECORDED, HOME)
    before = path.read_bytes()
    done = execution.execute(path, {"ROWS": 3, "NAMES": ["c"]}, tmp_path / "out", lines.append)
    assert not done.failed and path.read_bytes() == before
    (live,) = done.reports  # what was recorded before is not reported again
    saved = Report.load(tmp_path / "out" / "demo.json")
    assert saved.frame.to_dict("list") == {"row": [0, 1, 2], "c": [0, 1, 2]}
    assert saved.verdicts == live.verdicts == ["a is faster than b"]
    assert saved.notes == ["ValueError at pandas/core/frame.py:7"]  # no path of the machine that made it
    facts = saved.provenance
    assert (facts["ROWS"], facts["NAMES"], facts["lesson"]) == (3, ["c"], "99_demo")
    assert {"torch", "hardware", "date", "commit"} <= facts.keys()
    text = "".join(lines)
    assert "99 [1/4] ROWS = 2  # rows of the table; 1 to 9" in text and "99 [4/4] import os" in text
    executed = nbformat.read(tmp_path / "out" / path.name, 4)
    assert os.environ["LABKIT_HOME"] not in executed.cells[-1].outputs[0].text  # the reader's own answers


def test_a_cell_that_fails_is_one_message_and_what_was_reported_before_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = notebook(
        tmp_path, REPORT, "def act():\n    raise ValueError('no')\n\nact()", "print('not reached')"
    )
    done = execution.execute(path, {"ROWS": 1}, tmp_path / "out")
    # as the lesson counts: the cell that papermill adds is left out
    assert done.failed == "99_demo [3]:4: ValueError: no"
    assert (tmp_path / "out" / "demo.json").exists() and [r.name for r in done.reports] == ["demo"]
    executed = nbformat.read(tmp_path / "out" / path.name, 4)
    assert not executed.cells[-1].outputs and "ValueError" in str(executed.cells)


def test_a_kernel_that_dies_is_a_message_too(tmp_path: Path) -> None:
    path = notebook(tmp_path, "import os\nos._exit(1)", "1")
    assert execution.execute(path, {}).failed == "99_demo [2]: the kernel died in this cell"


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_an_interrupt_ends_kernel_and_ranks_and_keeps_what_was_reported(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    wait = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    (tmp_path / "pids").mkdir()
    ranks = (
        "import labkit\n"
        f"def note():\n    import os\n    open({str(tmp_path / 'pids')!r} + f'/{{os.getpid()}}', 'w')\n"
        "ranks = labkit.Ranks(2, device='cpu', backend='gloo')\nranks.run(note)\nnote()"
    )
    path = notebook(tmp_path, REPORT, ranks, wait)
    script = (
        "from pathlib import Path; from labkit.lessons.execution import execute; import sys\n"
        f"execute(Path({str(path)!r}), {{}}, Path({str(tmp_path / 'out')!r}), "
        "lambda text: print(text, end='', flush=True))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert running.stdout is not None
    while "[4/4]" not in (line := os.read(running.stdout.fileno(), 4096).decode()):
        assert line and running.poll() is None
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) != 0
    assert (tmp_path / "out" / "demo.json").exists() and (tmp_path / "out" / path.name).exists()
    pids = [int(file.name) for file in (tmp_path / "pids").iterdir()]
    assert len(pids) == 3  # the kernel's and two ranks'
    deadline = time.monotonic() + 30
    while any(map(_lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def test_a_lesson_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "02", "ONLY=all_reduce", "--json", "--save", str(tmp_path)]) == 0
    ((lesson,),) = [json.loads(capsys.readouterr().out)]
    assert lesson["parameters"] == {"ONLY": "all_reduce"} and not lesson["failed"]
    names = [report["name"] for report in lesson["reports"]]
    assert names == ["collectives"] and (tmp_path / "collectives.json").exists()


# --- the cells of the lessons ---


@pytest.mark.parametrize("path", files.lessons(), ids=files.number)
def test_the_parameters_of_a_lesson_are_in_form_and_used(path: Path) -> None:
    named = parameters(path)
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    tagged = [i for i, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", ())]
    assert tagged in ([], [0]), "the first code cell"
    rest = "\n".join("".join(cell["source"]) for cell in cells[1:])
    assert all(name in rest for name in named) and all(len(one.meaning) > 3 for one in named.values())


def test_no_two_lessons_report_under_one_name() -> None:
    names: list[str] = []
    for path in files.lessons():
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        names += set(re.findall(r'\bReport\(\s*"(\w[\w-]*)"', text))
    assert len(names) > 15 and len(names) == len(set(names))
