"""Predictions are asked for, kept, shown beside what was measured, and never made up for the reader."""

from __future__ import annotations

import builtins
import time

import nbformat
import pytest
from kernels import Kernel
from nbformat import v4

from labkit import predict
from labkit.study import answers, predictions, reveal
from tools import notebooks

pytestmark = pytest.mark.usefixtures("home")


def forget():
    """As after a restart of the kernel: only the file is left."""
    predictions._units.clear()
    answers._waiting.clear()


def test_a_prediction_is_shown_beside_the_measurement():
    predict("test.regions", 100, "regions")
    assert str(reveal("test.regions", 440)) == (
        "measured: 440 regions; you predicted 100, which is 4.4 times too low"
    )
    predict("test.exact", 440, unit="regions")
    assert reveal("test.exact", 440) == "measured: 440 regions; you predicted 440: exactly that"
    predict("test.near", 450, unit="regions")
    assert reveal("test.near", 440) == "measured: 440 regions; you predicted 450, within 10 %"
    predict("test.none", 2)
    assert reveal("test.none", 0) == "measured: 0; you predicted 2"


def test_answers_outlive_the_kernel():
    predict("test.regions", 100, unit="regions")
    forget()
    assert repr(predict("test.regions")) == "you predict 100 regions"
    assert "you predicted 100, which is 4.4 times too low" in reveal("test.regions", 440)
    (measured,) = [e for e in answers.entries() if e.kind == "measured"]
    assert measured.torch.startswith("2.") and measured.hardware and measured.date


def test_a_mind_may_change_until_the_measurement_is_seen():
    predict("test.x", 10)
    assert repr(predict("test.x", 20)) == "you predict 20"
    assert reveal("test.x", 100) == "measured: 100; you predicted 20, which is 5.0 times too low"
    late = predict("test.x", 100)
    assert repr(late) == "you predict 20; 100 came after the measurement: kept, not scored"
    assert reveal("test.x", 100) == (
        "measured: 100; you predicted 20, which is 5.0 times too low "
        "(you predicted 100 after you had seen it, not scored)"
    )
    assert [e.value for e in answers.entries() if e.kind == "predicted"] == [10, 20, 100]


def test_a_first_prediction_after_the_measurement_is_not_scored():
    assert reveal("test.x", 100) == "measured: 100"
    predict("test.x", 100, unit="us")
    assert reveal("test.x", 90) == "measured: 90 us; you predicted 100 after you had seen it, not scored"


def test_running_a_cell_again_adds_nothing_and_asking_takes_nothing_back():
    for _ in range(3):
        predict("test.breaks", 3)
    assert len(answers.entries()) == 1
    assert repr(predict("test.breaks")) == "you predict 3"


def test_no_prediction_is_fine():
    asked = predict("test.breaks", unit="breaks")
    assert repr(asked) == "no prediction given for test.breaks: fine, just run on"
    assert reveal("test.breaks", 5) == "measured: 5 breaks"
    assert [e.kind for e in answers.entries()] == ["measured"]


@pytest.mark.parametrize("value", ["many", "", object(), True, float("nan"), "inf", [1]])
def test_a_prediction_is_a_finite_number(value):
    with pytest.raises(ValueError, match="a prediction is a (finite )?number, got"):
        predict("test.x", value)
    assert answers.entries() == []


def test_other_mistakes_are_one_sentence():
    with pytest.raises(ValueError, match="a question is a name such as"):
        predict("")
    with pytest.raises(ValueError, match="a measurement is a number, got 'fast' for 'test.x'"):
        reveal("test.x", "fast")
    assert "not kept" in reveal("test.x", float("nan")) and answers.entries() == []


def test_an_unwritable_folder_is_said_once_and_the_answer_is_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    text = repr(predict("test.x", 5))
    assert text.startswith("you predict 5; cannot write") and text.endswith("kept for this kernel only")
    assert "you predicted 5, which is 2.0 times too low; cannot write" in reveal("test.x", 10)


def test_the_twin_says_how_to_answer_in_code_and_escapes_what_it_shows():
    asked = predict("test.<b>_per_forward", unit="<i>s")
    shown = asked._repr_html_()
    assert "<b>_per" not in shown and "<i>s" not in shown and "&lt;b&gt;_per_forward" in shown
    twin = predict("cliff.regions_per_forward", unit="regions")._repr_html_()
    assert "regions per forward?" in twin and "fine, just run on" in twin
    assert "predict(&quot;cliff.regions_per_forward&quot;, 100, unit=&quot;regions&quot;)" in twin
    assert "call, in ms?" in predict("start.call_ms", unit="ms")._repr_html_()


def field(asked):
    return asked.widget.children[1]


def test_typing_a_number_keeps_it_and_typing_words_says_so():
    asked = predict("test.breaks", unit="breaks")
    bundle, _ = asked._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", predictions.WIDGET}
    assert field(asked).value == ""  # not 0: that would be an answer
    field(asked).value = "many"
    assert "a prediction is a number" in asked.widget.children[3].value and answers.entries() == []
    field(asked).value = " 0 "
    assert "you predict 0 breaks" in asked.widget.children[3].value
    field(asked).value = ""
    field(asked).value = "1.6e2"
    assert [e.value for e in answers.entries()] == [0, 160] and asked.value == 160
    assert field(predict("test.breaks")).value == "160"
    assert reveal("test.breaks", 160).endswith("exactly that")


def test_showing_it_again_closes_the_field_of_the_time_before():
    from ipywidgets.widgets import widget as registry

    before = set(registry._instances)
    for _ in range(3):
        predict("test.breaks")._repr_mimebundle_()
    one = set(registry._instances) - before
    assert len([w for w in one if type(registry._instances[w]).__name__ == "Text"]) == 1
    predictions.Prediction._shown["test.breaks"].close()
    assert set(registry._instances) <= before


def test_without_ipywidgets_the_words_are_left(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("ipywidgets"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert set(predict("test.x")._repr_mimebundle_()[0]) == {"text/plain", "text/html"}


@pytest.mark.kernel
def test_a_number_typed_while_the_kernel_is_busy_is_there_for_the_next_cell():
    kernel = Kernel()
    try:
        kernel.run("from labkit import predict\nfrom labkit.study import reveal\nimport time")
        shown = kernel.run("asked = predict('test.kernel', unit='breaks')\nasked")
        assert shown["error"] is None and "just run on" in shown["html"]
        comm = kernel.run("print(asked.widget.children[1].comm.comm_id)")["stdout"].strip()
        busy = kernel.start("time.sleep(0.5)")
        update = {"method": "update", "state": {"value": "160"}, "buffer_paths": []}
        message = kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": update})
        kernel.client.shell_channel.send(message)
        kernel.finish(busy)
        assert kernel.run("print(reveal('test.kernel', 80))")["stdout"] == (
            "measured: 80 breaks; you predicted 160, which is 2.0 times too high\n"
        )
    finally:
        kernel.close()
    assert [e.value for e in answers.entries()] == [160, 80]  # in the reader's file, for the next kernel


@pytest.mark.kernel
def test_executing_a_lesson_neither_shows_nor_changes_the_readers_answers(tmp_path):
    predict("test.saved", 12345)
    before = answers.file().read_bytes()
    cells = [
        "from labkit import predict\nfrom labkit.study import reveal\npredict('test.saved')",
        "reveal('test.saved', 2)",
        "predict('test.saved', 9)",
    ]
    path = tmp_path / "a.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(source) for source in cells]), path)
    notebooks.execute(path)
    saved = path.read_text()
    assert answers.file().read_bytes() == before
    assert "12345" not in saved and "widget-view" not in saved and "labkit-home" not in saved
    first, second, third = nbformat.read(path, as_version=4).cells
    assert first.outputs == []  # a question without an answer leaves nothing in a saved page
    assert second.outputs[0].data["text/plain"] == "measured: 2"
    assert "9 came after the measurement" in third.outputs[0].data["text/plain"]


def test_a_long_file_is_read_quickly_enough():
    for i in range(2000):
        answers._waiting.setdefault(answers.file(), []).append(
            b'{"kind": "predicted", "question": "q%d", "value": 1}' % i
        )
    started = time.perf_counter()
    predict("test.x", 3)
    assert time.perf_counter() - started < 10
    assert len(answers.entries()) == 2001
