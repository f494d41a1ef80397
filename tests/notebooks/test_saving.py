"""Executing and saving a notebook: what is kept, what is dropped, and what is refused."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from labkit import files
from tools import fit, notebooks

TEMPORARY = tempfile.gettempdir()

MADE = {"torch": "2.13.0", "hardware": "2-core CPU", "date": "2026-01-31"}


def title():
    """Every notebook has one; last, so that the cells under test count from 1."""
    return v4.new_markdown_cell("# A lesson", id="title")


def write(path: Path, *sources: str) -> Path:
    cells = [v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(sources)]
    nbformat.write(v4.new_notebook(cells=[*cells, title()]), path)
    return path


def with_output(path: Path, output: dict) -> Path:
    cell = v4.new_code_cell("x", id="c0", execution_count=1, outputs=[nbformat.from_dict(output)])
    notebook = v4.new_notebook(cells=[cell, title()])
    notebook.metadata.labkit = {"code_hash": notebooks.code_hash(notebook), **MADE}
    nbformat.write(notebook, path)
    return path


def stream(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


@pytest.mark.kernel
def test_executing_saves_outputs_that_the_next_run_would_save_too(tmp_path):
    path = write(tmp_path / "a.ipynb", "x = 20", "print('one'); print('two'); x + 22")
    notebooks.execute(path)
    first = re.sub(rb'"seconds": \d+', b"", path.read_bytes())
    notebook = nbformat.read(path, as_version=4)
    printed, value = notebook.cells[1].outputs
    assert printed.text == "one\ntwo\n" and value.data["text/plain"] == "42"
    assert [c.id for c in notebook.cells] == ["c0", "c1", "title"]
    assert [c.execution_count for c in notebook.cells[:2]] == [1, 2]
    assert notebooks.is_fresh(path) and notebooks.problems(path) == []
    assert os.listdir(tmp_path) == ["a.ipynb"]
    assert notebook.metadata.labkit.seconds >= 0
    notebooks.execute(path)
    assert re.sub(rb'"seconds": \d+', b"", path.read_bytes()) == first


@pytest.mark.kernel
def test_a_widget_leaves_no_trace_but_its_static_twin(tmp_path):
    path = write(
        tmp_path / "a.ipynb", "import ipywidgets\ndisplay(ipywidgets.IntSlider())\nprint('slider at 0')"
    )
    notebooks.execute(path)
    saved = json.loads(path.read_text())
    assert "widgets" not in saved["metadata"]
    (output,) = saved["cells"][0]["outputs"]
    assert output["text"] == ["slider at 0\n"]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "a.ipynb, cell 2 (1 / 0): ZeroDivisionError: division by zero"),
        ("import time\ntime.sleep(60)", "a.ipynb, cell 2 (import time): still running after 2 s"),
        ("import os\nos._exit(3)", "a.ipynb, cell 2 (import os): the kernel died"),
        ("import os\nos.getcwd()", "a.ipynb, cell 2: its output holds this machine's path"),
        ("import ipywidgets\nipywidgets.IntSlider()", "a.ipynb, cell 2: its widget has no static twin"),
    ],
)
def test_a_run_that_is_not_fit_to_save_leaves_the_file_alone(tmp_path, source, message):
    path = write(tmp_path / "a.ipynb", "print('fine')", source)
    before = path.read_bytes()
    with pytest.raises(notebooks.NotebookError) as caught:
        notebooks.execute(path, timeout=2)
    assert str(caught.value).startswith(message)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.ipynb"]


def test_an_edited_cell_makes_the_outputs_stale(tmp_path):
    path = with_output(tmp_path / "a.ipynb", stream("1\n"))
    assert notebooks.problems(path) == []
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(v4.new_markdown_cell("Words do not count.", id="c1"))
    nbformat.write(notebook, path)
    assert notebooks.is_fresh(path)
    notebook.cells[0].source = "y"
    nbformat.write(notebook, path)
    assert not notebooks.is_fresh(path)
    assert "older than its cells" in notebooks.problems(path)[0]


def test_the_code_of_a_lessons_topic_counts_and_its_comments_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    lesson = v4.new_notebook(cells=[v4.new_code_cell("from course.cliff.figures import lane\nlane()")])
    for topic in ("cliff", "shared"):
        (tmp_path / "course" / topic / "deep").mkdir(parents=True)
    file = tmp_path / "course" / "cliff" / "deep" / "figures.py"
    file.write_text("def lane():\n    return 1\n")
    before = notebooks.code_hash(lesson)
    file.write_text("# why\ndef lane():\n\n    # because\n    return 1\n")
    (tmp_path / "course" / "shared" / "figures.py").write_text("x = 1\n")
    assert notebooks.code_hash(lesson) == before
    file.write_text("def lane():\n    return 2\n")
    assert notebooks.code_hash(lesson) != before


def test_a_moved_cell_boundary_is_another_code():
    together = v4.new_notebook(cells=[v4.new_code_cell("a\nb")])
    apart = v4.new_notebook(cells=[v4.new_code_cell("a"), v4.new_code_cell("b")])
    assert notebooks.code_hash(together) != notebooks.code_hash(apart)


def test_the_command_line_checks_all_and_says_what_is_wrong(tmp_path, capsys):
    good = with_output(tmp_path / "good.ipynb", stream("1\n"))
    bad = write(tmp_path / "bad.ipynb", "x")
    broken = tmp_path / "broken.ipynb"
    broken.write_text("not json")
    assert notebooks.main(["check", str(good)]) == 0
    assert notebooks.main(["check", str(broken), str(bad), str(tmp_path / "none.ipynb"), str(good)]) == 1
    complaints = capsys.readouterr().err
    assert "bad.ipynb: its outputs are older" in complaints
    assert "broken.ipynb is not a notebook" in complaints
    assert "none.ipynb: No such file" in complaints


# a lesson as it is committed has no problem; with one thing more in it, that is the one


def shown(data, **metadata):
    return v4.new_output("display_data", data=data, metadata=metadata)


IN_TEXT = [
    ("It runs 98765 breaks.", "no output above shows '98765 breaks'"),
    ("One forward takes 12.5 ms.", "'12.5 ms' is a time"),
    ("#### Deep", "heading 'Deep' is of level 4"),
    ("# Again", "heading 'Again' is a second title"),
    ("[more](nowhere.ipynb)", "a link to 'nowhere.ipynb', and there is no such file"),
    ("**Exercise** `a.b` · easy · 99 minutes.", "minutes for the exercises, and they add up to"),
]
IN_OUTPUT = [
    (v4.new_output("error", ename="ValueError", evalue="no", traceback=[]), "ended in ValueError: no"),
    (v4.new_output("stream", name="stderr", text="noise"), "wrote to stderr: 'noise'"),
    (v4.new_output("stream", text=f"in {Path.home()}/a.py"), f"machine's path '{Path.home()}/a.py'"),
    (v4.new_output("stream", text=f"file://{TEMPORARY}/x"), f"machine's path '{TEMPORARY}/x'"),
    (shown({"image/png": "", "text/plain": "<Figure size 9x9>"}), "its figure has no text summary"),
    (shown({"image/png": ""}, **{"image/png": {"alt": ""}}), "its figure has no text summary"),
    (shown({"text/plain": "IntSlider(value=1, description='x')"}), "its output is a live widget"),
    (shown({"text/html": "<img src='a.png' alt=' '>"}), "a picture in its HTML has no alt text"),
    (shown({"text/html": "<svg><rect/></svg>"}), "a drawing in its HTML has no <title>"),
]


def test_what_no_reader_should_meet_is_the_one_problem_of_a_lesson(tmp_path):
    folder = tmp_path / "notebooks"
    shutil.copytree(files.ours("notebooks"), folder, copy_function=os.symlink)
    path = next(folder.glob("02_*.ipynb"))
    whole = nbformat.read(path, as_version=4)
    path.unlink()

    def found(add):
        notebook = copy.deepcopy(whole)
        add(notebook)
        notebook.metadata.labkit["code_hash"] = notebooks.code_hash(notebook)
        path.write_text(nbformat.writes(notebook))
        return notebooks.problems(path)

    def last(notebook):
        return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs][-1]

    words = "'" + 12 * "many words " + "'"
    code = [
        (v4.new_code_cell(f"print({words})", execution_count=1), "characters of prose"),
        (v4.new_code_cell("x = 1"), "it was not run"),
    ]
    meta = [
        ({"date": ""}, "what its outputs were made on: date is missing"),
        ({"seconds": 6000}, "and it ran for 6000 s"),
    ]
    assert found(lambda notebook: None) == []
    for add, said in [
        *((lambda n, text=text: n.cells.append(v4.new_markdown_cell(text)), said) for text, said in IN_TEXT),
        *((lambda n, one=one: last(n).outputs.append(one), said) for one, said in IN_OUTPUT),
        *((lambda n, cell=cell: n.cells.append(cell), said) for cell, said in code),
        *((lambda n, one=one: n.metadata.labkit.update(one), said) for one, said in meta),
        (lambda n: [cell.update(outputs=[]) for _, cell in fit.code_cells(n)], "it has no outputs"),
        (lambda n: n.metadata.update(x=fit.MOST_BYTES * "x"), "draw fewer or smaller figures"),
    ]:
        problems = found(add)
        assert any(said in line for line in problems), (said, problems)
        assert len(problems) == 1 or said == "it has no outputs", problems
