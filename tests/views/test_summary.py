"""Every figure says in words what it shows, and a saved notebook keeps these words."""

from __future__ import annotations

import base64
import re

import nbformat
import pytest
from nbclient import NotebookClient

from labkit.views import style
from tools import fit


def shown(thing):
    """What a kernel would save of `thing` as the last line of a cell."""
    from IPython.core.formatters import DisplayFormatter

    data, metadata = DisplayFormatter().format(thing)
    data["image/png"] = base64.b64encode(data["image/png"]).decode()
    output = nbformat.v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    return nbformat.v4.new_code_cell("x", execution_count=1, outputs=[output])


def test_a_notebook_keeps_the_summary_as_alt_text_and_plain_text():
    sheet = style.Sheet()
    sheet.say("Two ranks meet.")
    figure = sheet.finish("simulated")
    cell = shown(figure)
    (output,) = cell.outputs
    assert output.metadata["image/png"]["alt"] == output.data["text/plain"] == figure.summary
    assert fit.alt_text(cell, 0) == figure.summary


def test_a_figure_without_a_summary_is_still_shown():
    from labkit.views.style import Figure

    cell = shown(Figure())
    assert re.fullmatch("<Figure .*>", cell.outputs[0].data["text/plain"]) and fit.alt_text(cell, 0) == ""


DRAWN = """
from course.guards.odd_shape_figures import lanes
spans = [{"kind": "compile", "start": 0.0, "end": 0.5}]
lanes({"one": {0: {"spans": spans, "ended": "right"}}}, 1.0, "simulated")"""


@pytest.mark.kernel
@pytest.mark.slow
def test_a_kernel_shows_a_figure_once_with_and_without_pyplot():
    cells = [nbformat.v4.new_code_cell(code) for code in (DRAWN, "import matplotlib.pyplot as plt" + DRAWN)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    for cell in notebook.cells:
        (shown,) = cell.outputs
        assert shown["metadata"]["image/png"]["alt"] == shown["data"]["text/plain"] != ""
