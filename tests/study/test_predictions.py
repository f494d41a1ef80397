"""Predictions are asked for, kept in the reader's file, shown beside what was measured, scored, and never made up."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from unittest import mock

import nbformat
import pytest
from kernels import Kernel
from nbformat import v4

from labkit import cli, files, predict
from labkit.study import predictions, reveal, scoreboard
from tools import notebooks


@pytest.fixture(autouse=True)
def fresh(home, monkeypatch):
    """As in a new kernel of a new reader."""
    monkeypatch.setattr(predictions, "_asked", {})
    monkeypatch.setattr(predictions, "_unwritten", [])


def kept(question: str = "q") -> list[float]:
    """The numbers that the file has for a question, whatever was damaged."""
    lines = [
        line for line in predictions.file().read_text().splitlines() if f'"question": "{question}"' in line
    ]
    return [json.loads(line)["value"] for line in lines]


def outputs(asked) -> list[dict]:
    """What a notebook gets to show."""
    shown: list[dict] = []
    with mock.patch("IPython.display.display", lambda data, raw: shown.append(data)):
        asked._ipython_display_()
    return shown


def row(question: str = "q"):
    return scoreboard().set_index("question").loc[question]


@pytest.mark.parametrize(
    ("predicted", "measured", "score", "sentence"),
    [
        (100, 100, "spot on (3)", "100: exactly that"),
        (110, 100, "spot on (3)", "110, within 10 %"),
        (100, 110, "spot on (3)", "100, within 10 %"),
        (111, 100, "close (2)", "111, which is 1.1 times too high"),
        (50, 100, "close (2)", "50, which is 2.0 times too low"),
        (201, 100, "right order of magnitude (1)", "201, which is 2.0 times too high"),
        (100, 440, "right order of magnitude (1)", "100, which is 4.4 times too low"),
        (0.01, 0.1, "right order of magnitude (1)", "0.01, which is 10.0 times too low"),
        (1001, 100, "a surprise (0)", "1001, which is 10.0 times too high"),
        (0, 0, "spot on (3)", "0: exactly that"),
        (0, 1, "a surprise (0)", "0"),
        (1, 0, "a surprise (0)", "1"),
        (-5, 5, "a surprise (0)", "-5"),
        (-5, -6, "close (2)", "-5"),
    ],
)
def test_a_prediction_is_scored_by_the_factor_to_the_measurement(predicted, measured, score, sentence):
    assert repr(predict("q", predicted)) == f"you predict {predicted}"
    assert reveal("q", measured) == f"measured: {measured}; you predicted {sentence}"
    assert row().score == score
    assert math.isinf(row().factor) == (score.startswith("a surprise") and sentence == str(predicted))


def test_a_mind_may_change_until_the_measurement_is_seen():
    for value in (10, 10, 20):  # running a cell again adds nothing
        predict("q", value, unit="us")
    assert reveal("q", 100) == "measured: 100 us; you predicted 20, which is 5.0 times too low"
    late = predict("q", 100, unit="us")
    assert repr(late) == "you predict 20 us; 100 us came after the measurement: kept, not scored"
    predictions._asked.clear()  # another kernel knows the unit from the file
    assert reveal("q", 50) == (
        "measured: 50 us; you predicted 20, which is 2.5 times too low (you predicted 100 after you had seen it, "
        "not scored)"
    )
    assert kept() == [10, 20, 100, 100, 50]
    assert tuple(row()) == (
        "elsewhere",
        "us",
        20,
        50,
        2.5,
        "right order of magnitude (1)",
    )  # the last measurement
    assert reveal("seen", 1) == "measured: 1"
    predict("seen", 1, unit="graphs")
    assert reveal("seen", 1) == "measured: 1 graph; you predicted 1 after you had seen it, not scored"
    last = json.loads(predictions.file().read_text().splitlines()[-1])
    assert last["torch"].startswith("2.") and last["hardware"] and last["date"] and last["kind"] == "measured"


def test_the_scoreboard_has_every_question_of_the_lessons(tmp_path, monkeypatch):
    cells = {
        "01_one": ["%load_ext labkit\nrun()", 'predict("one.a", unit="us")', 'predict("one.'],
        "01_one-Copy1": ['predict("one.a", unit="s")'],
        "02_two": ['x = predict("two.b", None, unit=f"of {len(x)}")', 'predict("two.c")\npredict("one.a")'],
    }
    for name, sources in cells.items():
        lesson = v4.new_notebook(cells=[v4.new_code_cell(source) for source in sources])
        nbformat.write(lesson, tmp_path / f"{name}.ipynb")
    (tmp_path / "03_damaged.ipynb").write_text("{")
    monkeypatch.setattr(files, "lessons", lambda: sorted(tmp_path.glob("*.ipynb")))
    board = scoreboard()
    assert board[["lesson", "question", "unit", "score"]].values.tolist() == [
        ["01_one", "one.a", "us", "not measured"],
        ["02_two", "two.b", "", "not measured"],
        ["02_two", "two.c", "", "not measured"],
        ["", "total", "", "nothing scored"],
    ]
    assert list(board) == ["lesson", "question", "unit", "predicted", "measured", "factor", "score"]
    assert board[["predicted", "measured", "factor"]].isna().all(axis=None)
    predict("one.a", 90)
    reveal("one.a", 100)
    predict("two.b", 1)
    reveal("two.c", 7)
    reveal("gone.d", 1)
    predict("gone.d", 1)
    assert scoreboard().score.tolist() == [
        "close (2)",
        "predicted, not measured",
        "no prediction",
        "after the measurement: not scored",
        "2 of 3 points, from 1 of 4 questions",
    ]
    for lesson in ("02", "02_two"):
        assert scoreboard(lesson).question.tolist() == ["two.b", "two.c", "total"]
    for wrong in ("2", "", 2):
        with pytest.raises(
            ValueError, match=f"no lesson {wrong!r} asks anything: there is 01_one, 02_two, else"
        ):
            scoreboard(wrong)


@pytest.mark.slow
def test_two_processes_that_append_at_once_lose_nothing():
    code = (
        "import sys; from labkit import predict\n"
        "for i in range(200): predict(sys.argv[1], i, unit='x' * 3000)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("a", "b")]
    assert [process.wait(timeout=100) for process in both] == [0, 0]
    assert kept("a") == kept("b") == list(range(200))
    assert predictions.file().stat().st_mode & 0o077 == 0  # nobody else's business


def test_an_answer_in_code_keeps_the_unit_of_the_lessons_question():
    predict("q", unit="graphs")
    assert repr(predict("q", 2)) == "you predict 2 graphs"
    assert reveal("q", 4) == "measured: 4 graphs; you predicted 2, which is 2.0 times too low"


def test_damaged_lines_are_passed_over_and_stay():
    predict("q", 1)
    damaged = [
        b"not json",
        b'{"kind": "predicted"}',
        b'{"kind": "predicted", "question": "q", "value": "many"}',
        b'{"kind": "predicted", "question": "q", "value": NaN}',
        b'{"kind": "predicted", "question": "q", "value": 1' + b"0" * 400 + b"}",
        b'{"kind": "predicted", "question": ["q"], "value": 1}',
        b'{"kind": "guessed", "question": "q", "value": 1}',
        b"[1, 2]",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"kind": "predicted", "question": "q", "value": 2, "mood": "of a later version"}',
        b'{"kind": "predicted", "question": "q", "val',  # its writer died: no end of line
    ]
    with predictions.file().open("ab") as out:
        out.write(b"\n".join(damaged))
    before = predictions.file().read_bytes()
    assert repr(predict("q")) == "you predict 2"
    assert repr(predict("q", 3)) == "you predict 3"
    assert predictions.file().read_bytes().startswith(before)


def test_where_nothing_can_be_written_answers_last_as_long_as_the_kernel(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    why = f"cannot write {tmp_path}/file/predictions.jsonl (File exists): kept for this kernel only"
    assert repr(predict("q", 5)) == f"you predict 5; {why}"
    assert reveal("q", 10) == f"measured: 10; you predicted 5, which is 2.0 times too low; {why}"
    assert row().score == "close (2)"


@pytest.mark.parametrize(("chosen", "measured", "score"), [("b", "b", "right (3)"), ("a", "b", "wrong (0)")])
def test_a_choice_is_right_or_wrong(chosen, measured, score):
    asked = {"options": ["a", "b"]}
    assert repr(predict("q", chosen, **asked)) == f"you predict {chosen}"
    found = f"measured: {measured}; you predicted {chosen}: {score.split()[0]}"
    assert reveal("q", measured) == found
    found_row = row()
    assert (found_row.predicted, found_row.measured, found_row.score) == (chosen, measured, score)
    assert math.isnan(found_row.factor)
    predict("q", "b", **asked)
    assert reveal("q", "b").startswith(f"{found} (you predicted b after" if chosen == "a" else found)
    predict("number", 4)
    reveal("number", 8)
    assert row("number").factor == 2
    points = 2 + int(score[-2])
    assert row("total").score.startswith(f"{points} of 6 points, from 2 of ")


def test_a_question_that_is_asked_in_another_way_starts_afresh():
    predict("q", 0)
    reveal("q", 3)
    asked = predict("q", options=["hangs", "raises"])
    assert repr(asked).startswith("no prediction given") and asked.field().children[1].value is None
    assert asked.twin() == "<div><b>Your prediction</b>: q? (hangs or raises) Run this cell to answer.</div>"
    assert reveal("q", "hangs") == "measured: hangs"
    predictions._asked.clear()  # as in a new kernel, where the cell that asks was not run
    assert reveal("q", "raises") == "measured: raises"
    predict("q", 3)
    assert repr(predict("q")) == "you predict 3" and reveal("q", 3).endswith("you predicted 3: exactly that")


def test_a_revealed_answer_can_be_folded():
    predict("q", 2, unit="<graphs>")
    shown = reveal("q", 4, fold=True)
    assert repr(shown) == "What was measured (folded)"
    page = shown._repr_html_()
    assert page.startswith("<details><summary") and "you predicted 2, which is 2.0 times too low" in page
    assert "measured: 4 &lt;graphs&gt;" in page.partition("</summary>")[2]
    assert "4" not in page.partition("</summary>")[0]


def test_bad_input_is_one_sentence():
    for value in ("many", "", object(), True, float("nan"), "inf", [1], 10**400):
        with pytest.raises(ValueError, match="a prediction is a finite number, got .* for 'q'"):
            predict("q", value)
    for call in (lambda: predict(""), lambda: predict(3, 1), lambda: reveal(" ", 1)):
        with pytest.raises(ValueError, match="a question is a name such as 'cliff.breaks_per_forward', got"):
            call()
    predict("q")
    with pytest.raises(ValueError, match="a measurement is a number, got 'fast' for 'q'"):
        reveal("q", "fast")
    assert reveal("q", math.inf) == "measured: inf, which is no number to compare with: not kept"
    for options in ("ab", ["a"], ["a", "a"], [1, 2], {"a": 1, "b": 2}):
        with pytest.raises(ValueError, match="the prediction 'c'"):
            predict("c", options=options)
    for value in ("c", 1):
        with pytest.raises(ValueError, match=f"a prediction is one of a or b, got {value!r} for 'c'"):
            predict("c", value, options=["a", "b"])
        with pytest.raises(ValueError, match=f"a measurement is one of a or b, got {value!r} for 'c'"):
            reveal("c", value)
    assert not predictions.file().exists()


def test_typing_a_number_keeps_it_and_typing_words_says_so():
    asked = predict("a.call_<b>_ms", unit="ms")
    twin, live = outputs(asked)
    assert set(twin) == {"text/plain", "text/html"} and set(live) == {"text/plain", notebooks.WIDGET}
    assert twin["text/html"].endswith("</b>: call &lt;b&gt;? (ms) Run this cell to answer.</div></div>")
    question, typed, unit, keep, said = asked.field().children
    assert question.value == "<b>Your prediction</b>: call &lt;b&gt;?" and unit.value == "ms"
    assert typed.value == "" and "fine, just run on" in said.value  # not 0: that would be an answer
    typed.value = "many"
    assert "a prediction is a finite number" in said.value and not predictions.file().exists()
    typed.value = " 0 "
    assert said.value == "you predict 0 ms"
    typed.value = ""
    typed.value = "1.6e2"
    assert kept("a.call_<b>_ms") == [0, 160]
    again = predict("a.call_<b>_ms")
    assert again.field().children[1].value == "160"
    assert "Run this cell" not in outputs(again)[0]["text/html"]


def test_an_option_that_is_clicked_is_kept():
    asked = predict("a.end", options=["it <hangs>", "it raises"])
    question, buttons, unit, said = asked.field().children
    assert buttons.value is None and "fine, just run on" in said.value
    buttons.value = "it <hangs>"
    assert said.value == "you predict it &lt;hangs&gt;"
    line = json.loads(predictions.file().read_text())
    assert line["choice"] == "it <hangs>" and "value" not in line  # who reads numbers only passes it over
    assert predict("a.end", options=["it <hangs>", "it raises"]).field().children[1].value == "it <hangs>"
    assert predict("a.end", options=["it ends", "it raises"]).field().children[1].value is None


def test_without_ipywidgets_the_words_are_left(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    (shown,) = outputs(predict("q"))
    assert set(shown) == {"text/plain", "text/html"}


@pytest.mark.kernel
def test_a_number_typed_while_the_kernel_is_busy_is_there_for_the_next_cell():
    kernel = Kernel()
    try:
        kernel.run("from labkit import predict\nfrom labkit.study import reveal\nimport ipywidgets, time")
        shown = kernel.run("predict('test.kernel', unit='breaks')")
        assert shown["error"] is None and "just run on" in shown["text"]
        fields = "ipywidgets.widgets.widget._instances.values()"
        find = f"print(*[w.comm.comm_id for w in {fields} if isinstance(w, ipywidgets.Text)])"
        comm = kernel.run(find)["stdout"].strip()
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
    assert kept("test.kernel") == [160, 80]  # in the reader's file, for the next kernel


@pytest.mark.kernel
def test_executing_a_lesson_neither_shows_nor_changes_the_readers_answers(tmp_path):
    predict("test.saved", 12345)
    cells = [
        "from labkit import predict\nfrom labkit.study import reveal\npredict('test.saved')",
        "reveal('test.saved', 2)",
        "predict('test.saved', 9)",
    ]
    path = tmp_path / "a.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(source) for source in cells]), path)
    notebooks.execute(path)
    saved = path.read_text()
    notebooks.execute(path)
    assert [cell.outputs for cell in nbformat.read(path, 4).cells] == [
        cell.outputs for cell in nbformat.reads(saved, 4).cells
    ]  # where nothing was typed, running a lesson changes nothing
    assert kept("test.saved") == [12345]
    assert "12345" not in saved and "widget-view" not in saved and "labkit-home" not in saved
    first, second, third = nbformat.read(path, as_version=4).cells
    (question,) = first.outputs
    assert "saved? Run this cell to answer." in question.data["text/html"]
    assert second.outputs[0].data["text/plain"] == "measured: 2"
    assert third.outputs[0].data["text/plain"] == "9 came after the measurement: kept, not scored"


def test_every_lesson_asks_and_none_answers_for_the_reader():
    asked = [(path, cell.source) for path in files.lessons() for cell in nbformat.read(path, 4).cells]
    lines = [(path, line) for path, source in asked for line in source.splitlines() if "predict(" in line]
    for path, line in lines:
        call = ast.parse(line.strip()).body[0].value
        words = {word.arg for word in call.keywords}
        assert len(call.args) == 1 and words <= {"unit", "options"}, f"{path.name}: {line}"
        assert words & {"unit", "options"}, f"{path.name}: {line}"
    listed = scoreboard()
    assert len(lines) == len(listed) - 1 <= 59  # more rows than 60 are not shown in a notebook
    assert "start.graphs_on_rank_0" in set(listed.question)


def test_the_command_line_prints_the_scoreboard(capsys):
    predict("cliff.breaks_per_forward", 160, unit="breaks")
    reveal("cliff.breaks_per_forward", 320)
    assert cli.main(["score"]) == 0
    out = capsys.readouterr().out
    assert "breaks" in out and "close (2)" in out and str(predictions.file()) in out
    assert "2 of 3 points, from 1 of " in out
    assert cli.main(["score", "--json"]) == 0
    rows = {row["question"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["cliff.breaks_per_forward"]["factor"] == 2.0
    assert rows["start.graphs_on_rank_0"]["measured"] is None


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"LABKIT_HOME": "/given/here"}, "/given/here"),
        ("linux", {"LABKIT_HOME": "~/mine"}, "/users/me/mine"),
        ("linux", {}, "/users/me/.local/share/labkit"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/labkit"),
        ("linux", {"XDG_DATA_HOME": "not/absolute"}, "/users/me/.local/share/labkit"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, "/users/me/Library/Application Support/labkit"),
    ],
)
def test_the_folder_is_the_platforms_own_unless_one_is_named(monkeypatch, platform, variables, folder):
    for name in ("LABKIT_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/users/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert str(predictions.file()) == f"{folder}/predictions.jsonl"
