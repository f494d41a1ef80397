"""The explorer: its static twin, its controls, and that nothing of it outlives its cell."""

from __future__ import annotations

import builtins

import pandas as pd
import pytest

from labkit.lessons.cliff.explorer import explorer, explorer_static


def controls(widget):
    found, todo = [], [widget]
    while todo:
        part = todo.pop(0)
        todo += getattr(part, "children", ())
        found.append(part)
    return {getattr(part, "description", "") or type(part).__name__: part for part in found}


def test_the_static_twin_has_every_variant_and_one_line(report):
    figure, text = explorer_static(report)
    assert [ax.get_label() for ax in figure.axes if ax.get_label() == "whole"] == ["whole"] * 2
    assert text == (
        "B: every rank: 4 regions, 4 collectives, 4 breaks | C: every rank: 1 region, 4 collectives, no break"
    )


def test_controls_redraw_the_picture_and_the_text(report):
    found = explorer(report)
    parts = controls(found.widget)
    first = bytes(parts["Image"].value)
    assert first.startswith(b"\x89PNG")
    parts["variant"].value = "C"
    second = bytes(parts["Image"].value)
    assert second != first and "rank 1: 1 region" in parts["HTML"].value
    parts["rank"].value = 0
    assert "rank 1" not in parts["HTML"].value
    assert parts["zoom, %"].disabled
    parts["magnify a typical block"].value = False
    parts["zoom, %"].value = (20.0, 30.0)
    assert bytes(parts["Image"].value) not in (first, second)
    found.close()


def test_blocks_can_be_chosen_when_there_are_several(report):
    for name in ("segments", "breaks", "counts"):
        table = report.tables[name]
        more = table.assign(blocks=2)
        if name == "segments":
            more = more[more["variant"] == "B"]
        report.tables[name] = pd.concat([table.assign(blocks=1), more], ignore_index=True)
    found = explorer(report)
    parts = controls(found.widget)
    assert parts["blocks"].options == (1, 2) and parts["blocks"].value == 2
    before = parts["Image"].value
    parts["variant"].value = "C"  # was not run with two blocks
    assert "no blocks 2 in table" in parts["HTML"].value and parts["Image"].value == before
    parts["blocks"].value = 1
    assert "1 region" in parts["HTML"].value
    found.close()


def test_closing_lets_go_of_every_widget_and_observer(report):
    from ipywidgets.widgets import widget as registry

    before = set(registry._instances)
    found = explorer(report)
    parts = controls(found.widget)
    picture = parts["Image"].value
    assert set(registry._instances) > before
    found.close()
    left = {registry._instances[i].__class__.__name__ for i in set(registry._instances) - before}
    assert left == set()
    parts["variant"].value = "C"
    assert parts["Image"].value == picture  # nobody watches any more
    assert found.figure is not None and found.text


def test_without_ipywidgets_the_static_twin_remains(report, monkeypatch, capsys):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.split(".")[0] == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    found = explorer(report)
    assert found.widget is None
    found._ipython_display_()
    assert found.text == " | ".join(capsys.readouterr().out.splitlines()[-2:])


def test_a_report_without_segments_is_refused(report):
    report.tables["segments"] = report.tables["segments"].iloc[:0]
    with pytest.raises(ValueError, match="'segments' of this report is empty"):
        explorer(report)
    del report.tables["segments"]
    with pytest.raises(ValueError, match="has no table 'segments'"):
        explorer_static(report)


CELLS = [
    "import pickle\nimport labkit.views.style as style\nfrom labkit.views import strip\n"
    "from labkit.lessons.cliff.explorer import explorer\n"
    "report = pickle.load(open(PATH, 'rb'))\nfrom labkit.views.forwards import variant_record",
    "strip(variant_record(report, 'B'))",
    "import matplotlib.pyplot as plt\nstrip(variant_record(report, 'B'))",
    "explorer(report)",
]


@pytest.mark.kernel
@pytest.mark.slow
def test_a_kernel_shows_each_figure_once_and_the_twin_under_the_widget(report, tmp_path):
    import pickle

    import nbformat
    from nbclient import NotebookClient

    path = tmp_path / "report.pkl"
    path.write_bytes(pickle.dumps(report))
    sources = [f"PATH = {str(path)!r}\n{CELLS[0]}", *CELLS[1:]]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3", store_widget_state=False).execute()
    for cell in notebook.cells[1:3]:  # with and without pyplot's inline backend
        shown = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        assert len(shown) == len(cell.outputs) == 1
        assert shown[0]["metadata"]["image/png"]["alt"] == shown[0]["data"]["text/plain"]
    widget, twin, text = notebook.cells[3].outputs
    assert "application/vnd.jupyter.widget-view+json" in widget["data"]
    said = " | ".join(text["text"].splitlines())
    assert widget["data"]["text/plain"] == twin["data"]["text/plain"] == said
    assert "image/png" in twin["data"] and twin["metadata"]["image/png"]["alt"] == said
