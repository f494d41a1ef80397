"""A widget: its static twin, its controls, and that nothing of it outlives its cell."""

from __future__ import annotations

import builtins
import inspect

import IPython.display
import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from course.shared.timelines import ENDS, NOTES, timelines
from labkit.views.widget import InteractiveFigure


class Limit(InteractiveFigure):
    """One wait of two seconds, with a slider for the limit that the title compares with it."""

    def __init__(self, notes, ends):
        self.notes, self.ends = notes, ends
        super().__init__(self.draw(1.0))

    def draw(self, timeout_s):
        title = f"A limit of {timeout_s:g} s: {'ended' if timeout_s < 2 else 'slow, and right'}"
        return timelines(self.notes, self.ends, "", title)

    def _build(self, widgets):
        slider = widgets.FloatSlider(value=1.0, min=0.2, max=5.0, step=0.1)
        return self.picture_with_controls(widgets, {"timeout_s": slider}, self.draw)


@pytest.fixture
def found() -> Limit:
    notes = pd.DataFrame([("d", 0, "collective", "all_reduce", 0.5, 2.5)], columns=NOTES)
    return Limit(notes, pd.DataFrame([("d", 0, 2.5, "returned")], columns=ENDS))


def parts(widget) -> dict:
    return {type(part).__name__: part for part in widget.children}


def test_a_control_redraws_the_picture(found):
    shown = parts(found.widget)
    first = bytes(shown["Image"].value)
    assert first == found.figure.png(quick=True) != found.draw(3.0).png(quick=True)
    shown["FloatSlider"].value = 3.0
    assert bytes(shown["Image"].value) == found.draw(3.0).png(quick=True)
    found.close()


def test_closing_lets_go_of_every_widget_and_observer(found):
    from ipywidgets.widgets import widget as registry

    before = set(registry._instances)
    shown = parts(found.widget)
    picture = shown["Image"].value
    assert set(registry._instances) > before
    found.close()
    assert set(registry._instances) == before
    shown["FloatSlider"].value = 4.0
    assert shown["Image"].value == picture  # nobody watches any more
    assert found.figure is not None


def test_without_ipywidgets_the_static_twin_remains(found, monkeypatch):
    real, calls = builtins.__import__, []

    def missing(name, *args, **kwargs):
        if name.split(".")[0] == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.setattr(IPython.display, "display", lambda shown, **more: calls.append(shown))
    assert found.widget is None
    found._ipython_display_()
    assert calls == [found.figure]


CELLS = [
    "import pandas as pd\nfrom course.shared.timelines import ENDS, NOTES, timelines\n"
    "from labkit.views.widget import InteractiveFigure\n"
    f"{inspect.getsource(Limit)}\n"
    "notes = pd.DataFrame([('d', 0, 'collective', 'all_reduce', 0.5, 2.5)], columns=NOTES)\n"
    "ends = pd.DataFrame([('d', 0, 2.5, 'returned')], columns=ENDS)",
    "timelines(notes, ends)",
    "import matplotlib.pyplot as plt\ntimelines(notes, ends)",
    "Limit(notes, ends)",
]


@pytest.mark.kernel
@pytest.mark.slow
def test_a_kernel_shows_each_figure_once_and_the_twin_under_the_widget():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    NotebookClient(notebook, timeout=120, kernel_name="python3", store_widget_state=False).execute()
    for cell in notebook.cells[1:3]:  # with and without pyplot's inline backend
        shown = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        assert len(shown) == len(cell.outputs) == 1
        assert shown[0]["metadata"]["image/png"]["alt"] == shown[0]["data"]["text/plain"]
    widget, twin = notebook.cells[3].outputs
    assert "application/vnd.jupyter.widget-view+json" in widget["data"] and "image/png" in twin["data"]
    alt = twin["metadata"]["image/png"]["alt"]  # the figure's summary, which begins with its title
    assert widget["data"]["text/plain"] == twin["data"]["text/plain"] == alt
    assert alt.startswith("A limit of 1 s: ended")
