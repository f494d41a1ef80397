"""Each rule for a committed notebook, with a notebook that breaks it and one that does not."""

from __future__ import annotations

import base64

import nbformat
import pytest
from nbformat import v4

from tools import fit, notebooks

PNG = base64.b64encode(b"\x89PNG").decode()
REPR = "<Figure size 1100x400 with 1 Axes>"
SAID = "Rank 0 enters one region"


def code(*outputs, source="x", count=1):
    return v4.new_code_cell(source, execution_count=count, outputs=list(outputs))


def picture(text=REPR, kind="image/png", alt=None):
    metadata = {kind: {"alt": alt}} if alt is not None else {}
    return v4.new_output("display_data", data={kind: PNG, "text/plain": text}, metadata=metadata)


def shown(**data):
    return v4.new_output("display_data", data={name.replace("_", "/"): text for name, text in data.items()})


def printed(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def saved(folder, *cells, title="# A lesson"):
    """A notebook on disk whose hash is right, so that only the rule under test can speak."""
    notebook = v4.new_notebook(cells=[*cells, v4.new_markdown_cell(title)])
    notebook.metadata.labkit = {
        "code_hash": notebooks.code_hash(notebook),
        "torch": "2",
        "hardware": "cpu",
        "date": "2026",
    }
    path = folder / "a.ipynb"
    nbformat.write(notebook, path)
    return path


def problems(folder, *cells, **title):
    return notebooks.problems(saved(folder, *cells, **title))


def test_a_notebook_in_order_has_no_problems(tmp_path):
    assert problems(tmp_path, code(printed("1")), code(picture(alt=SAID)), code(source="", count=None)) == []


def test_a_stale_hash_is_a_problem(tmp_path):
    path = saved(tmp_path, code(printed("1")))
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].source = "y"
    nbformat.write(notebook, path)
    (said,) = notebooks.problems(path)
    assert "older than its cells" in said and f"`make notebooks NOTEBOOKS=notebooks/{path.name}`" in said


def test_an_error_is_a_problem(tmp_path):
    error = v4.new_output("error", ename="ValueError", evalue="no", traceback=[])
    assert problems(tmp_path, code(error)) == ["cell 1: ended in ValueError: no"]


def test_a_cell_that_was_not_run_is_a_problem(tmp_path):
    found = problems(tmp_path, code(printed("1")), code(source="y = 2", count=None))
    assert found == ["cell 2: it was not run: `make notebooks` executes the notebook"]


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([picture(alt=SAID)], SAID),
        ([picture(alt=f"{SAID},\n  and leaves it")], f"{SAID}, and leaves it"),
        ([picture(SAID)], SAID),
        ([picture(), printed(SAID)], SAID),
        ([picture(), shown(text_markdown=SAID)], SAID),
        ([picture(kind="image/svg+xml", alt=SAID)], SAID),
        ([picture()], ""),
        ([picture(alt="")], ""),
        ([picture(alt="Figure")], ""),
        ([picture("<IPython.core.display.Image object>")], ""),
        ([picture(), printed("noise from somewhere else", name="stderr")], ""),
        ([picture(), picture(SAID)], ""),  # the text of the next picture says nothing about this one
        ([picture(kind="image/jpeg")], ""),
    ],
)
def test_a_figure_needs_a_text(tmp_path, outputs, text):
    cell = code(*outputs)
    assert fit.alt_text(cell, 0) == text
    found = [line for line in problems(tmp_path, cell) if "no text summary" in line]
    assert bool(found) == (not text)
    assert all(line.startswith("cell 1: its figure has no text summary") for line in found)


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ("<img src='a.png'>", "a picture in its HTML has no alt text"),
        ("<img src='a.png' alt=' '>", "a picture in its HTML has no alt text"),
        ("<img src='a.png' alt='two ranks'>", None),
        ("<svg><rect/></svg>", "a drawing in its HTML has no <title> and no aria-label"),
        ("<svg role='img' aria-label='two ranks'><rect/></svg>", None),
        ("<svg><title>Two ranks</title><rect/></svg>", None),
        ("<svg aria-hidden='true'><rect/></svg>", None),
    ],
)
def test_a_picture_in_html_needs_a_text(tmp_path, html, said):
    assert problems(tmp_path, code(shown(text_html=html))) == ([f"cell 1: {said}"] if said else [])


@pytest.mark.parametrize(
    "output",
    [
        v4.new_output("display_data", data={fit.WIDGET: {}, "text/plain": "a slider"}),
        shown(text_plain="interactive(children=(IntSlider(value=1, description='x'), Output()))"),
        shown(text_plain="IntSlider(value=1, description='x')"),
        shown(text_plain="Loading widget..."),
    ],
)
def test_a_live_widget_is_a_problem(tmp_path, output):
    assert problems(tmp_path, code(output)) == [
        "cell 1: its output is a live widget: show a figure and a line of text with it"
    ]


def test_calls_and_values_are_no_widgets(tmp_path):
    assert problems(tmp_path, code(shown(text_plain="PerRank(rank 0: 1, rank 1: 2)"))) == []


@pytest.mark.parametrize(
    ("markdown", "said"),
    [
        ("# A\n\n## B\n\n### C\n\n## D", None),
        ("# A\n\n```sh\n#### a comment\n```\n\n~~~~\n```\n# no\n~~~~\n## B", None),
        ("no heading", "it has no title: the first cell begins with `# `"),
        ("## B", "cell 2: heading 'B' is of level 2 and no title stands above it"),
        ("# A\n\n### C #", "cell 2: heading 'C' is of level 3 under one of level 1"),
        ("# A\n\n## B\n\n# A2", "cell 2: heading 'A2' is a second title: a notebook has one"),
    ],
)
def test_headings_nest(tmp_path, markdown, said):
    assert problems(tmp_path, code(printed("1")), title=markdown) == ([said] if said else [])


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
def test_a_notebook_stays_small(tmp_path, extra, fits):
    path = saved(tmp_path, code(printed("1")))
    spaces = fit.MOST_BYTES + extra - path.stat().st_size
    path.write_bytes(path.read_bytes() + b" " * spaces)
    found = notebooks.problems(path)
    assert found == (
        [] if fits else ["it has 1.50 MB, and 1.5 MB is the most: draw fewer or smaller figures"]
    )
