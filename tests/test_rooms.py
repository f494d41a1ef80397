"""The helper and the first lessons do without the other rooms: in a copy of the project in which these are deleted,
`look` and `postmortem` of oddrank among them."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import notebooks

ROOT = Path(__file__).resolve().parents[1]
# of lessons 00 to 06
TOPICS = {"start", "groups", "functional", "reading", "cliff", "trap", "streams", "shared"}
LESSONS = sorted((ROOT / "notebooks").glob("0[0-6]_*.ipynb"))
CHECKED = """
import sys
from pathlib import Path
ours = [m for name, m in sys.modules.items() if name.partition(".")[0] in ("labkit", "course", "ledger", "oddrank")]
made = [m for m in ours if hasattr(m, "__file__")]  # not of the cells of a lesson
outside = [m.__name__ for m in made if not str(Path(m.__file__).resolve()).startswith({root!r})]
assert ours and not outside, outside
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("without").resolve()
    leave = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in ("labkit", "course", "notebooks", "data"):
        shutil.copytree(ROOT / name, root / name, ignore=leave)
    shutil.copyfile(ROOT / "pyproject.toml", root / "pyproject.toml")
    shutil.copytree(ROOT / "oddrank" / "src" / "oddrank", root / "oddrank", ignore=leave)
    for room in ("look", "postmortem"):
        shutil.rmtree(root / "oddrank" / room)
    for path in (root / "course").iterdir():
        if path.is_dir() and path.name not in TOPICS:
            shutil.rmtree(path)
    return root


def imports_of(path: Path) -> list[str]:
    """The import statements of a lesson."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    lines = [
        ast.unparse(node)
        for source in cells
        if not source.startswith(("%%", "!"))
        for node in ast.walk(ast.parse("\n".join("" if s[:1] in "%!" else s for s in source.splitlines())))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return list(dict.fromkeys(lines))


def python(root: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300)


def test_what_lessons_00_to_06_import_is_there(without):
    lines = [line for path in LESSONS for line in imports_of(path)]
    assert len(LESSONS) == 7 and len(lines) > 30
    done = python(without, "\n".join([*lines, CHECKED.format(root=str(without))]))
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_command_line_has_the_commands_that_are_left(without):
    code = "import sys; from labkit.cli import main; sys.exit(main(sys.argv[1:]))"
    said = python(without, code, "--help").stdout
    assert "execute a lesson" in said
    listed = python(without, code, "lessons")
    assert {"04_graph_break_cliff", "05_eager_trap"} <= set(listed.stdout.split()), listed.stderr


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize("lesson", ["00_start_here", "02_inplace_vs_functional"])
def test_a_lesson_runs(without, lesson, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(without))
    notebook = nbformat.read(without / "notebooks" / f"{lesson}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKED.format(root=str(without))))
    done = notebooks.run(notebook, without / "notebooks", f"{lesson}.ipynb")
    errors = [o for c in done.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert not errors, json.dumps(errors)[-1000:]
