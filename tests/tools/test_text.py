"""The lessons as text: what `make text` writes for a review."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys

import nbformat

from tools.fit import ROOT

LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def command():
    """The command that `make text` runs for each lesson."""
    recipe = (
        (ROOT / "Makefile").read_text().partition("\ntext: ")[2].partition("\n\n")[0].replace("\\\n", " ")
    )
    found = re.search(r"-m jupytext (.+?) --output", recipe)
    assert found, recipe
    return [sys.executable, "-m", "jupytext", *shlex.split(found[1])]


def test_a_lesson_becomes_a_python_file_without_outputs(tmp_path):
    lesson, out = LESSONS[4], tmp_path / "lesson.py"
    done = subprocess.run([*command(), "--output", str(out), str(lesson)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    ast.parse(text)  # magics are comments in it
    cells = nbformat.read(lesson, as_version=4).cells
    assert len(re.findall(r"^# %%(?: |$)", text, re.MULTILINE)) == len(cells)
    assert 'tags=["parameters"]' in text and "image/png" not in text and "code_hash" not in text
