"""A bench runs, locks, stops, keeps its tries and shows errors: driven through its widgets, as JupyterLab does."""

from __future__ import annotations

import base64
import html
import threading
import time
import types

import ipywidgets
import matplotlib.pyplot as plt
import pytest
import torch.distributed as dist
from oddrank.record.tables import Compile, Tables
from oddrank.source import annotate

from labkit.pace import patience
from labkit.study import Bench, bench
from labkit.study.pictures import as_html, saved
from labkit.views.style import Sheet


def names(tries) -> str:
    return "; ".join(f"{one.name} makes {one.result}" for one in tries)


def twice(size=1, **others):
    return 2 * size


def until(done) -> None:
    deadline = time.monotonic() + patience(60)
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def quiet(made: Bench) -> None:
    until(lambda: made._worker is None)


def click(made: Bench, button: str = "_go") -> None:
    """What JupyterLab sends; it sends it also for a button that has just been disabled."""
    getattr(made, button)._handle_button_msg(None, {"event": "click"}, [])


@pytest.fixture
def gate():
    """A run that waits until the gate opens, and how often it was started."""

    def run(size):
        run.begun.append(size)
        if len(run.begun) > 1:
            run.open.wait(patience(60))
        return size

    run.begun, run.open = [], threading.Event()
    yield run
    run.open.set()


def test_the_last_tries_are_drawn_and_the_same_values_take_the_place_of_their_old_ones():
    seen = []
    made = Bench(twice, lambda tries: seen.append(names(tries)) or seen[-1], go="Run", keep=2, size=[1, 2, 3])
    for size in (2, 3, 2, 2):
        made.controls["size"].value = size
        assert made._picture.value == seen[-1]
        click(made)
        quiet(made)
    assert seen == [
        "size: 1 makes 2",
        "size: 1 makes 2; size: 2 makes 4",
        "size: 2 makes 4; size: 3 makes 6",
        "size: 3 makes 6; size: 2 makes 4",
        "size: 3 makes 6; size: 2 makes 4",
    ]


def test_while_a_run_goes_on_clicks_are_dropped_and_nothing_can_be_changed(gate):
    made = Bench(gate, names, go="Run", predict=("Which?", ["1", "2"], str), size=[1, 2])
    made.controls["size"].value = 2
    click(made)  # no option is chosen yet
    assert made._worker is None and made._go.disabled and made._stop.disabled
    made._guess.value = "1"
    assert not made._go.disabled
    for _ in range(3):
        click(made)
    until(lambda: len(gate.begun) == 2)
    assert made.controls["size"].disabled and made._guess.disabled and made._go.disabled
    assert not made._stop.disabled and "the first run with these values" in made._said.value
    gate.open.set()
    quiet(made)
    assert gate.begun == [1, 2] and made._said.value == "<b>no</b>: you said 1, it was 2"
    assert not made._go.disabled and not made.controls["size"].disabled and made._stop.disabled
    made.controls["size"].value = 1
    assert made._guess.value is None and made._go.disabled and "choose" in made._said.value
    made._guess.value = "1"
    assert made._said.value == ""
    click(made)
    quiet(made)
    assert made._said.value == "<b>yes</b>: you said 1, it was 1"
    assert [one.guess for one in made.tries] == ["1", "1"]


def test_a_stop_that_comes_before_the_run_begins_counts(gate):
    made = Bench(gate, names, go="Run", size=[1, 2])
    with made._lock:  # so long no run begins
        click(made)
        click(made, "_stop")
    quiet(made)
    assert gate.begun == [1] and made._said.value.startswith("stopped; the tries before stay")


def test_a_run_says_how_long_it_took_with_these_values(gate):
    made = Bench(gate, names, go="Run", size=[1, 2])
    made._seconds[repr({"size": 2})] = 14.6
    gate.open.set()
    for size, said in ((2, "about 15 s"), (1, "about 1 s")):
        made.controls["size"].value = size
        with made._lock:  # so long no run begins
            click(made)
            assert made._said.value.rpartition("&ensp;")[2] == said
        quiet(made)
    assert made._seconds[repr({"size": 2})] < 14


@pytest.mark.slow
def test_stop_ends_a_call_on_ranks_and_python_code_and_the_tries_stay(ranks):
    def work(what):
        dist.barrier()
        while what == "ranks":
            time.sleep(0.01)

    def run(what):
        ranks.run(work, what, timeout=None)
        while what == "python":
            time.sleep(0.01)
        return what

    made = Bench(run, names, go="Run", what=["nothing", "ranks", "python"])
    for what in ("ranks", "python", "ranks"):
        made.controls["what"].value = what
        before = ranks.calls
        click(made)
        until(lambda before=before: ranks.calls > before)
        click(made, "_stop")
        click(made, "_stop")
        quiet(made)
        assert made._said.value.startswith("stopped; the tries before stay") and not made._go.disabled
        assert isinstance(made.error, KeyboardInterrupt) and len(made.tries) == 1
    made.controls["what"].value = "nothing"
    click(made)
    quiet(made)
    assert made.error is None and made._picture.value == "what: nothing makes nothing"
    click(made, "_stop")  # nothing runs


@pytest.mark.slow
def test_an_error_is_readable_and_whole_and_the_bench_works_after_it(ranks):
    def work(what):
        if dist.get_rank() == 1 and what == "a rank":
            raise ValueError("an odd <shape>")
        dist.barrier()

    def run(what):
        ranks.run(work, what)
        return {"run": []}[what] if what == "run" else None if what == "end" else what

    def end():
        raise SystemExit(3)

    def draw(tries):
        if tries[-1].result == []:
            raise KeyError("no picture")
        return names(tries) if tries[-1].result else end()

    made = Bench(run, draw, go="Run", what=["nothing", "a rank", "run", "end"])
    expected = {
        "a rank": "rank 1 failed after",
        "run": "KeyError: 'no picture'",
        "end": "SystemExit: 3",
    }
    for what, head in expected.items():
        made.controls["what"].value = what
        click(made)
        quiet(made)
        text, _, rest = html.unescape(made._said.value).partition("</pre>")
        assert head in text and "Traceback" not in text
        assert "<summary" in rest and "Traceback" in rest and ("in run" in rest or "in draw" in rest)
        assert [one.values["what"] for one in made.tries] == ["nothing"] and made.error is not None
    made.controls["what"].value = "a rank"
    click(made)
    quiet(made)
    shown = html.unescape(made._said.value)
    assert "\nrank 1 raised ValueError: an odd <shape>\n    test_bench.py:" in shown
    made.controls["what"].value = "nothing"
    click(made)
    quiet(made)
    assert made.error is None and "Error" not in made._said.value


def test_an_error_of_the_first_try_ends_the_cell():
    with pytest.raises(ZeroDivisionError):
        Bench(lambda size: 1 / size, names, go="Run", size=[0, 1])
    with pytest.raises(TypeError, match="draw returned nothing: it returns a figure, HTML text, or"):
        Bench(twice, lambda tries: None, go="Run", size=[0, 1])
    with pytest.raises(ValueError, match="predict 'Which\\?': 2 is none of its options"):
        Bench(twice, names, go="Run", predict=("Which?", ["0", "1"], lambda result: result), size=[1, 2])


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ([1, 2], "ToggleButtons", 1),
        (list(range(7)), "Dropdown", 0),
        ((1, 8), "IntSlider", 1),
        ((1, 8, 2), "IntSlider", 1),
        ((0.5, 2), "FloatSlider", 0.5),
        (True, "Checkbox", True),
        ("a text", "Text", "a text"),
    ],
)
def test_each_kind_of_value_has_its_control(given, kind, value):
    made = Bench(lambda number_of_calls: number_of_calls, names, go="Run", number_of_calls=given)
    control = made.controls["number_of_calls"]
    assert (type(control).__name__, control.value, control.description) == (kind, value, "number of calls")
    assert made.tries[0].result == value


def needs(size, *, shape):
    return size


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "a bench needs at least one control"),
        ({"size": 5}, "control 'size' is a list of values, .* got 5"),
        ({"size": None}, "control 'size' is a list of values, .* got None"),
        ({"size": []}, r"control 'size' needs a list of at least two values, got \[\]"),
        ({"size": [1]}, "control 'size' needs a list of at least two values"),
        ({"size": [1, 1.0]}, "control 'size' has 1 twice"),
        ({"size": [1, "1"]}, "control 'size' has 1 twice"),
        ({"size": [1, None]}, "control 'size': a value is a text, a number or a bool, got None"),
        ({"size": (8, 1)}, r"control 'size': a slider is \(low, high\) .* got \(8, 1\)"),
        ({"size": ("a", "b")}, "control 'size': a slider is .*; other values stand in a list"),
        ({"size": (1, 8, 0)}, "control 'size': a slider is"),
        ({"size": ipywidgets.IntText()}, "control 'size' is a list of values, .* got IntText"),
        ({"sise": [1, 2]}, "control 'sise': run takes no sise, it takes size"),
        ({"run": needs, "size": [1, 2]}, "run needs 'shape', and no control has that name"),
        ({"size": [1, 2], "go": ["a", "b"]}, "go is the text of the button, got .*: a control needs another"),
        ({"size": [1, 2], "keep": 0}, "keep must be a whole number above 0, got 0"),
        ({"size": [1, 2], "predict": ("Why?", [])}, r"predict is \(question, options, right\), got"),
        (
            {"size": [1, 2], "go": "Run", "predict": ("Why?", [], str)},
            "predict 'Why\\?' needs a list of at least",
        ),
        ({"size": [1, 2], "go": "Run", "predict": ("", ["a", "b"], str)}, "predict needs a question, got ''"),
        ({"size": [1, 2], "go": "Run", "predict": ("Why?", ["a", "b"], "a")}, "right must be a function"),
        ({"size": [1, 2], "go": ""}, "go is the text of the button, got ''"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_runs(given, words):
    def run(size):
        raise AssertionError("it ran")

    with pytest.raises(ValueError, match=words):
        Bench(given.pop("run", run), names, **{"go": "Run", **given})
    with pytest.raises(TypeError, match="draw must be a function, got None"):
        Bench(run, None, go="Run", size=[1, 2])


def test_all_answers_are_drawn_folded_and_their_text_says_nothing():
    ran = []
    made = Bench(
        lambda **v: ran.append(v) or v["size"],
        names,
        go="Run",
        size=[1, 2, 4],
        fast=False,
        calls=(0, 8),
        word="a",
    )
    every = made.every("size", say="All <sizes>")
    assert repr(every) == "All <sizes> (folded)"
    page = every._repr_html_()
    assert page.startswith("<details><summary") and "All &lt;sizes&gt;</summary>size: 1, fast" in page
    assert [one["size"] for one in ran] == [1, 1, 2, 4] and len(made.tries) == 1
    assert "fast: True" in made.every("fast").picture and "calls: 7" in made.every("calls", [0, 7]).picture
    assert "word: b" in made.every("word", ["b"]).picture  # a field takes any text
    for name, values, words in (
        ("sizes", None, "no control 'sizes' here: there is size, fast, calls, word"),
        ("size", [3], "control 'size' has no value 3"),
        ("calls", [9], "control 'calls' has no value 9"),
        ("calls", ["a"], "control 'calls' has no value 'a'"),
        ("calls", None, "give values of 'calls': only a list"),
        ("size", [], "give values of 'size'"),
    ):
        ran.clear()
        with pytest.raises(ValueError, match=words):
            made.every(name, values)
        assert ran == []


def test_what_stands_in_a_saved_notebook_says_to_run_the_cell_and_needs_no_script(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    drawing = '<svg width="9"><title>five &lt; six</title><rect/></svg>'
    asked = ("How?", ["a<b", "c"], lambda result: "c")
    made = Bench(
        twice, lambda tries: f"{drawing}{tries[-1].name}", go="Run", predict=asked, size=[1, 2], calls=(0, 8)
    )
    made.controls["size"].value = 2
    made._guess.value = "c"
    click(made)
    quiet(made)
    made._ipython_display_()
    twin, live = shown
    assert set(twin) == {"text/html", "text/plain"} and live["text/plain"] == ""
    page = twin["text/html"]
    assert "<b>Run this cell</b> in JupyterLab to change: size (1, 2); calls (0 to 8). How?" in page
    assert (
        page.endswith("size: 1, calls: 0</div>") and "size: 2" not in page
    )  # what the reader found is not saved
    assert not any(word in page for word in ("<svg", "<script", "<style", "model_id", "c</"))
    data = base64.b64decode(page.partition("data:image/svg+xml;base64,")[2].partition('"')[0]).decode()
    assert (
        data == drawing.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')
        and 'alt="five &lt; six"' in page
    )
    assert twin["text/plain"] == "a bench (size, calls): run its cell in JupyterLab"
    again = Bench(
        twice, lambda tries: f"{drawing}{tries[-1].name}", go="Run", predict=asked, size=[1, 2], calls=(0, 8)
    )
    again._ipython_display_()
    assert shown[2] == twin  # to run a lesson again changes nothing in its file


def test_what_draw_may_return():
    sheet = Sheet()
    sheet.title("5 < 6")
    assert 'alt="5 &lt; 6."' in as_html(sheet.finish()) and "data:image/png;base64,iVBOR" in as_html(
        sheet.finish()
    )
    figure = plt.figure()
    assert 'alt="size: 1"' in as_html(figure, "size: 1") and figure.number not in plt.get_fignums()
    tables = Tables()
    tables.compiles.append(Compile(0, "0/0", "gone.py", 3, "step", outcome="graph", operators=1, graphs=1))
    assert "step" in as_html(annotate(tables)) and as_html("<i>a</i>") == "<i>a</i>"
    with pytest.raises(TypeError, match="draw returned int: it returns a figure"):
        as_html(5)
    assert saved("<svg a='1'></svg>b<svg></svg>").count("<img") == 2


def test_a_cell_that_runs_again_stops_what_its_last_bench_still_runs(monkeypatch, gate):
    cell = types.SimpleNamespace(execution_count=1, parent_header={"metadata": {"cellId": "a"}})
    monkeypatch.setattr(bench, "shell", lambda: cell)

    def run(size):
        while size == 2:
            time.sleep(0.01)

    first, other = (Bench(one, names, go="Run", size=[1, 2]) for one in (run, gate))
    for made in (first, other):
        made.controls["size"].value = 2
        click(made)
    assert first._worker is not None and other._worker is not None  # two of one cell go together
    gate.open.set()
    cell.execution_count = 2
    Bench(run, names, go="Run", size=[1, 2])
    assert first._worker is None and isinstance(first.error, KeyboardInterrupt)
    click(other)
    assert other._worker is None  # it is closed


@pytest.mark.slow
def test_it_says_so_where_the_ranks_are_busy(ranks):
    made = Bench(lambda size: ranks.run(time.sleep, 0).same(), names, go="Run", size=[1, 2])
    with ranks._busy:
        click(made)
        quiet(made)
    assert "these ranks are busy with another call" in made._said.value
