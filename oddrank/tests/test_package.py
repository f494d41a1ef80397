"""oddrank stands alone: it reads traces with the standard library, and private names of torch stand in one package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import oddrank

SOURCE = Path(oddrank.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
OTHERS = ("labkit", "course", "ledger", "facts")

# what a machine without torch has: the standard library and this package; -S leaves out what is installed
ALONE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import runpy
runpy.run_module("oddrank", run_name="__main__", alter_sys=True)
"""


def alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-I", "-c", ALONE, str(SOURCE.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command_runs_where_nothing_else_is_installed(tmp_path):
    assert alone("--version").stdout == f"oddrank {oddrank.__version__}\n"
    trace = tmp_path / "dedicated_log_torch_trace_rank_3_x.log"
    trace.write_text(
        'V0101 0:0:0.0 1 torch/a.py:1] {"str": ["/home/ada/model.py", 0]}\n'
        'V0101 0:0:0.0 1 torch/a.py:1] {"dynamo_start": {"stack": [{"line": 7, "name": "step", "filename": 0}]},'
        ' "rank": 3, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}\n'
    )
    read = alone("tables", str(tmp_path))
    assert read.returncode == 0, read.stderr
    assert "model.py:7" in read.stdout and "unfinished" in read.stdout
    assert alone("tables", str(tmp_path), "--json").stdout.startswith("{")
    # and says what the other commands lack
    assert "no: torch is not installed" in alone("doctor").stdout
    for words, lacks in (
        (("look", "train.py"), "torch and pandas are"),
        (("report", str(tmp_path)), "pandas is"),
    ):
        done = alone(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert f"oddrank: {lacks} not installed here: " in done.stderr


OTHERS_OF_LOOK = (*OTHERS, "matplotlib", "PIL", "IPython", "ipywidgets", "nbformat", "cloudpickle")


def test_look_needs_torch_and_pandas_and_nothing_else():
    code = (
        f"import sys\nfor name in {OTHERS_OF_LOOK}: sys.modules[name] = None\n"
        f"import importlib\nfor name in {[path.stem for path in (SOURCE / 'look').glob('[a-z]*.py')]}:\n"
        "    importlib.import_module(f'oddrank.look.{name}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_the_command_imports_look_and_postmortem(path):
    room = path.relative_to(SOURCE).parts[0]
    allowed = {"command.py": ("look", "postmortem")}.get(room, (room,))
    tools = [
        name.split(".")[1]
        for name in imported(path)
        if name.startswith(("oddrank.look", "oddrank.postmortem"))
    ]
    assert set(tools) <= set(allowed), tools


def imported(path: Path) -> set[str]:
    """What a file imports by name, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {node.module or "", *(f"{node.module}.{one.name}" for one in node.names)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_imports_nothing_of_the_course_and_no_private_name_of_torch(path):
    names = imported(path)
    assert not {name for name in names if name.partition(".")[0] in OTHERS}
    if path.parent.name == "torch_names":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | names
    private = {name for name in dotted if name.startswith("torch.") and "._" in name.partition(".__")[0]}
    assert not private
