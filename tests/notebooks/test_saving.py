"""Executing and saving a notebook: what is kept, what is dropped, and what is refused."""

from __future__ import annotations

import json
import os
import re
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
        ("import sys\nprint('noise', file=sys.stderr)", "a.ipynb, cell 2: wrote to stderr: 'noise'"),
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"saved in {notebooks.ROOT}/data", True),
        (f"{Path.home()}/.cache", True),
        (f"File {TEMPORARY}/ipykernel_12/34.py:1", True),
        (f"file://{TEMPORARY}/x", True),
        ("see docs/tmp/readme", False),
        ("https://example.test/home/page", False),
        ("ratio a/b, /tmpfs", False),
    ],
)
def test_paths_of_this_machine_are_found(tmp_path, text, found):
    path = with_output(tmp_path / "a.ipynb", stream(text))
    assert any("this machine's path" in line for line in notebooks.problems(path)) == found


def test_an_error_output_is_a_problem(tmp_path):
    error = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
    path = with_output(tmp_path / "a.ipynb", error)
    assert notebooks.problems(path) == ["cell 1: ended in ValueError: no"]


def test_a_picture_is_not_searched_for_paths(tmp_path):
    picture = {
        "output_type": "display_data",
        "data": {"image/png": f"AAAA {TEMPORARY}/x AAAA"},
        "metadata": {"image/png": {"alt": "A picture of nothing"}},
    }
    assert notebooks.problems(with_output(tmp_path / "a.ipynb", picture)) == []


def test_a_notebook_without_outputs_is_a_problem(tmp_path):
    path = write(tmp_path / "a.ipynb", "x")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.labkit = {"code_hash": notebooks.code_hash(notebook), **MADE}
    nbformat.write(notebook, path)
    assert notebooks.problems(path) == ["it has no outputs: `make notebooks` executes it"]


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


@pytest.mark.parametrize("gone", MADE)
def test_a_notebook_that_does_not_say_what_its_outputs_were_made_on_is_a_problem(tmp_path, gone):
    path = with_output(tmp_path / "n.ipynb", v4.new_output("stream", text="1"))
    assert notebooks.problems(path) == []
    notebook = nbformat.read(path, 4)
    del notebook.metadata.labkit[gone]
    nbformat.write(notebook, path)
    assert notebooks.problems(path) == [f"it does not say what its outputs were made on: {gone} is missing"]


@pytest.mark.parametrize(
    ("says", "seconds", "fits"),
    [
        ("40 minutes, about 2 of them to run.", 130, True),
        ("40 minutes, about 2 of them to run.", 50, True),
        ("40 minutes, about 2 of them to run.", 140, False),
        ("40 minutes, about 2 of them to run.", 40, False),
        ("40 minutes, 1 of them to run on two cores.", 5, True),
        ("10 minutes.", 500, True),
    ],
)
def test_the_minutes_that_a_lesson_says_are_those_that_it_took(says, seconds, fits):
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell(f"# A\n\n**Needs.** {says} Two ranks.")])
    notebook.metadata.labkit = {"seconds": seconds}
    found = fit.stated(notebook)
    assert (found == []) == fits and all(f"it ran for {seconds} s" in line for line in found)


def test_all_lessons_together_ran_for_less_than_40_minutes_when_they_were_executed():
    taken = {p.stem: nbformat.read(p, 4).metadata.labkit.get("seconds") for p in files.lessons()}
    assert None not in taken.values(), taken
    assert sum(taken.values()) < 40 * 60, taken


# what every lesson keeps to, each with a planted violation


@pytest.mark.parametrize("name", [path.stem for path in files.lessons()])
@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("It runs 98765 breaks.", "no output above shows '98765 breaks'"),
        ("One forward takes 12.5 ms.", "'12.5 ms' is a time"),
        ("print('" + 12 * "many words " + "', x)", "it shows 132 characters of prose"),
        ("Markdown(f'So {x} of them, ' + '" + 12 * "and so on " + "')", "of prose"),
    ],
)
def test_a_planted_violation_is_found(name, planted, said):
    notebook = nbformat.read(files.ours("notebooks") / f"{name}.ipynb", as_version=4)
    assert fit.numbers(notebook) == fit.prose(notebook) == []
    made = v4.new_code_cell if "(" in planted else v4.new_markdown_cell
    notebook.cells.append(made(planted))
    (found,) = fit.numbers(notebook) + fit.prose(notebook)
    assert said in found and found.startswith(f"cell {len(notebook.cells)}: ")


def test_a_number_in_markdown_needs_an_output_above_it_or_a_source():
    made = v4.new_code_cell("x", outputs=[v4.new_output("stream", text="rank 0: 440 regions, 1,024 bytes")])
    fine = "It enters 440 regions and sends 1024 bytes. The source reports 160 breaks and 24.5 ms."
    wrong = "It enters 441 regions. The 440 breaks hurt."
    cells = [title(), made, v4.new_markdown_cell(fine), v4.new_markdown_cell(wrong)]
    found = fit.numbers(v4.new_notebook(cells=cells))
    assert found == [f"cell 4: no output above shows {said!r}" for said in ("441 regions", "440 breaks")]
    cells[1:1] = [v4.new_markdown_cell(fine)]  # said before it is shown
    assert "cell 2: no output above shows '440 regions'" in fit.numbers(v4.new_notebook(cells=cells))
