"""The scoreboard: the rule, what is scored and what is not, and every question of every lesson."""

from __future__ import annotations

import json
import math

import nbformat
import pytest
from nbformat import v4

from labkit import cli, predict
from labkit.study import answers, reveal, scoreboard, scores

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(
    ("predicted", "measured", "name", "points"),
    [
        (100, 100, "spot on", 3),
        (110, 100, "spot on", 3),
        (100, 110, "spot on", 3),
        (111, 100, "close", 2),
        (200, 100, "close", 2),
        (50, 100, "close", 2),
        (201, 100, "right order of magnitude", 1),
        (0.01, 0.1, "right order of magnitude", 1),
        (1001, 100, "a surprise", 0),
        (0, 0, "spot on", 3),
        (0, 1, "a surprise", 0),
        (1, 0, "a surprise", 0),
        (-5, 5, "a surprise", 0),
        (-5, -6, "close", 2),
    ],
)
def test_the_rule(predicted, measured, name, points):
    assert scores.grade(scores.factor(predicted, measured)) == (name, points)


@pytest.fixture
def checkout(tmp_path):
    """Two lessons that ask three questions."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    sources = {
        "01_one": ['%load_ext labkit\npredict("one.a", unit="us")', "not python ("],
        "02_two": [
            'x = predict("two.b", None, "breaks")',
            'labkit.predict("two.c")\npredict("one.a", unit="s")',
        ],
    }
    for name, cells in sources.items():
        nbformat.write(
            v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells]), folder / f"{name}.ipynb"
        )
    return tmp_path


def test_every_question_of_the_lessons_has_a_row(checkout):
    assert scores.questions(checkout) == {
        "one.a": ("01_one", "us"),
        "two.b": ("02_two", "breaks"),
        "two.c": ("02_two", ""),
    }
    lessons = checkout / "notebooks"
    (lessons / "01_one-Copy1.ipynb").write_bytes((lessons / "01_one.ipynb").read_bytes())
    (lessons / "03_damaged.ipynb").write_text("{")
    rows = scoreboard(root=checkout).rows
    assert [(row.lesson, row.question, row.unit, row.score) for row in rows] == [
        ("01_one", "one.a", "us", "not run yet"),
        ("02_two", "two.b", "breaks", "not run yet"),
        ("02_two", "two.c", "", "not run yet"),
    ]


def test_what_is_scored_and_what_is_only_shown(checkout):
    predict("one.a", 100)
    reveal("one.a", 500)
    reveal("one.a", 250)  # the last measurement counts
    predict("one.a", 250)
    reveal("two.b", 7)
    predict("two.c", 3)
    reveal("gone.d", 1)
    predict("gone.d", 1)
    board = scoreboard(root=checkout)
    found = {row.question: row for row in board.rows}
    assert (found["one.a"].predicted, found["one.a"].later, found["one.a"].factor) == (100, 250, 2.5)
    assert found["one.a"].points == 1
    assert found["two.b"].score == "no prediction" and found["two.b"].points is None
    assert found["two.c"].score == "predicted, not run yet"
    assert found["gone.d"].score == "after the measurement: not scored"
    assert found["gone.d"].lesson == "elsewhere"
    assert board.totals() == {"01_one": (1, 3, 1), "02_two": (0, 0, 2), "elsewhere": (0, 0, 1)}
    text = board.text()
    assert "100 us (later 250)" in text and "2.50" in text and "right order of magnitude (1)" in text
    assert "01_one: 1 of 3 points; predictions scored: 1 of 1" in text
    assert "02_two: nothing scored; predictions scored: 0 of 2" in text
    assert "all lessons: 1 of 3 points; predictions scored: 1 of 4" in text


def test_the_frame_has_numbers_where_there_are_some(checkout):
    predict("one.a", 90)
    reveal("one.a", 100)
    frame = scoreboard(root=checkout).frame().set_index("question")
    assert frame.loc["one.a", ["predicted", "measured", "points"]].tolist() == [90, 100, 2]
    assert frame.loc["one.a", "hardware"] and frame.loc["one.a", "torch"].startswith("2.")
    assert math.isnan(frame.loc["two.b", "measured"]) and frame.loc["two.b", "score"] == "not run yet"


def test_it_shows_itself_in_words_and_in_html(checkout):
    answers.add("predicted", "<script>alert(1)</script>", 3, "<b>")
    board = scoreboard(root=checkout)
    shown = board._repr_html_()
    assert "<script>" not in shown and "3 &lt;b&gt;" in shown
    assert "within 10 %" in shown and shown.count("<tr>") == 1 + len(board.rows)
    assert repr(board) == board.text()


def test_without_a_checkout_and_without_answers_it_says_so(tmp_path):
    board = scoreboard(root=tmp_path)
    assert board.rows == () and "no question yet" in board.text() and "no question yet" in board._repr_html_()


def test_damaged_lines_are_mentioned(checkout, home):
    home.mkdir()
    (home / "predictions.jsonl").write_text('{"half\n')
    assert "cannot be read, and were left as they are: 1" in scoreboard(root=checkout).text()


def test_no_lesson_answers_for_the_reader():
    asked = {name: lesson for name, (lesson, _) in scores.questions().items()}
    assert {"start.graphs_on_rank_0", "cliff.regions_per_forward", "cliff.breaks_per_forward"} <= set(asked)
    for path in (scores.ROOT / "notebooks").glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code" and "predict(" in cell.source:
                for line in cell.source.splitlines():
                    if line.startswith("predict("):
                        assert line.count(",") == 1 and ", unit=" in line, f"{path.name}: {line}"


def test_the_command_line_prints_the_scoreboard(home, capsys):
    predict("cliff.breaks_per_forward", 160, unit="breaks")
    reveal("cliff.breaks_per_forward", 320)
    assert cli.main(["score"]) == 0
    out = capsys.readouterr().out
    assert "160 breaks" in out and "close (2)" in out and str(home / "predictions.jsonl") in out
    assert cli.main(["score", "--json"]) == 0
    rows = {row["question"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["cliff.breaks_per_forward"]["factor"] == 2.0
    assert rows["start.graphs_on_rank_0"]["measured"] is None
