"""Lesson 00: what its benches show for every value of their controls, and the surprises that its text explains."""

from __future__ import annotations

import itertools
import re

import lesson_cells
import pytest
import torch
from oddrank.source import annotate

import labkit
from course.start import layers, pictures
from labkit.study.bench import Try

pytestmark = pytest.mark.slow

LESSON = "00_start_here"


@pytest.fixture(scope="module")
def cells():
    """What the cells of the benches define, in the order of the lesson."""
    given = {name: __import__(name) for name in ("contextlib", "io", "time")}
    names = ("imports-l00", "cell-07-l00", "waits-run-l00", "split-l00", "watch-l00", "cell-16-l00")
    found = lesson_cells.run(
        LESSON,
        *names,
        labkit=labkit,
        layers=layers,
        record=__import__("oddrank.record").record.record,
        **given,
    )
    yield found
    found["ranks"].close()


def test_nobody_has_the_sum_before_the_last_rank_calls(cells):
    for delays in ((0.3, 0.0), (0.0, 0.3)):
        found = cells["run_late"](*delays)
        assert min(ended for _, _, ended in found.values()) >= max(called for _, called, _ in found.values())
        late = delays.index(0.3)
        began, called, _ = found[late]
        assert called - began >= 0.3
        picture = pictures.waits([Try(dict(zip("ab", delays, strict=True)), found, 1.0)], "gloo · cpu")
        assert "rank 1: delay, all_reduce" in picture.summary


@pytest.mark.parametrize("number_of_ranks", [2, 3, 4])
def test_relu_before_the_sum_gives_other_numbers_on_other_numbers_of_ranks(cells, number_of_ranks):
    wrong = {2: [8.0, 2.0], 3: [8.0, 5.0], 4: [8.0, 6.0]}[number_of_ranks]
    for relu, returns, word in (
        ("after the sum", [6.0, 2.0], "as one process"),
        ("before the sum", wrong, "something else"),
    ):
        found = cells["run_split"](number_of_ranks, relu)
        assert [one["returns"] for one in found.values()] == [[returns]] * number_of_ranks
        assert cells["compared"](found) == word
        assert sum(len(one["w"]) for one in found.values()) == 4
        page = pictures.owners([Try({"relu": relu}, found, 1.0)])
        assert page.count(pictures.WRONG) == 1 + number_of_ranks * (returns[0] != 6.0) + number_of_ranks * (
            returns[1] != 2.0
        )
        assert all(
            (colour in page) == (rank < number_of_ranks) for rank, colour in enumerate(pictures.OWNERS)
        )


def test_weights_without_a_negative_number_hide_the_bug(cells, monkeypatch):
    monkeypatch.setitem(cells, "W", cells["W"].abs())  # as a reader who edits the cell and runs it
    for number_of_ranks in (2, 3):
        found = cells["run_split"](number_of_ranks, "before the sum")
        assert cells["compared"](found) == "as one process"
        assert found[0]["one process"] == torch.relu(cells["X"] @ cells["W"]).tolist()


# before the all_reduce, after it
WHERE = {
    "pass": (layers.ENDS[0], layers.ENDS[0]),
    "if dist.get_rank() == 0: print('hello')": (layers.ENDS[1], layers.ENDS[1]),
    "if y.max() > 5: print('large')": (layers.ENDS[4], layers.ENDS[3]),
    "if y.shape[0] > 5: print('large')": (layers.ENDS[0], layers.ENDS[0]),
    "assert y.isfinite().all()": (layers.ENDS[0], layers.ENDS[0]),
    # of the reader's own
    "if dist.get_rank() == 1: print('hello')": (layers.ENDS[2], layers.ENDS[2]),
    "dist.all_reduce(y, async_op=True).wait()": (layers.ENDS[3], layers.ENDS[3]),
    "print('a')\nprint('b')": (layers.ENDS[3], layers.ENDS[3]),
}


def test_where_graphs_end_for_each_line(cells):
    assert cells["LINES"] == list(WHERE)[:5]
    for (line, ends), (i, place) in itertools.product(WHERE.items(), enumerate(layers.PLACES)):
        found = cells["run_line"](line, place)
        assert layers.where(found) == ends[i], (line, place)
        page = pictures.sources([Try({"line": line}, found, 1.0)])
        assert ("ranks differ" in page) == (ends[i] not in (layers.ENDS[0], layers.ENDS[3])), (line, place)


def test_the_newest_try_is_on_top(cells):
    tries = [
        Try({"line": line}, cells["run_line"](line, layers.PLACES[0]), 1.0) for line in ("y + 1", "y + 2")
    ]
    page = re.sub(r"<[^>]*>", "", pictures.sources(tries))
    assert 0 < page.index("y + 2") < page.index("y + 1")


def test_the_all_reduce_of_a_rank_that_prints_is_in_another_graph(cells):
    line = "if dist.get_rank() == 0: print('hello')"
    rows = annotate(cells["run_line"](line, layers.PLACES[0])).listing.sections[0].rows
    reduces = next(row for row in rows if "dist.all_reduce" in row.text)
    assert [cell.graphs for cell in reduces.cells] == [("B",), ("A",)]


def test_an_assert_is_an_operator(cells):
    rows = annotate(cells["run_line"]("assert y.isfinite().all()", layers.PLACES[1])).listing.sections[0].rows
    line = next(row for row in rows if "isfinite" in row.text)
    names = [one.name for stages in line.operators.values() for one in stages["Dynamo"]]
    assert "_assert_async" in names, names


def test_a_line_that_is_not_python_and_a_place_that_is_none_are_refused(cells):
    with pytest.raises(SyntaxError):
        cells["run_line"]("if y.max() >", layers.PLACES[0])
    with pytest.raises(
        ValueError, match="a place is one of 'before the all_reduce', 'after it', got 'between'"
    ):
        layers.text("pass", "between")


ENDED = {
    ("SUM", 4, 0, "none"): "the sum",
    ("MAX", 4, 0, "none"): "wrong, without an error",
    ("MIN", 4, 0, "none"): "wrong, without an error",
    ("MAX", 1, 0, "none"): "the sum",  # both hold rank 0's
    ("MAX", 4, 0, "DETAIL"): "wrong, without an error",
    ("MAX", 4, 0, "verify=True"): "an error or a hang",
    ("SUM", 4, 2, "none"): "an error or a hang",
    ("SUM", 1, 2, "none"): "an error or a hang",
    ("SUM", 4, 2, "DETAIL"): "an error or a hang",
}


def test_which_difference_is_noticed(cells):
    found = {case: cells["run_disagree"](*case) for case in ENDED}
    assert {case: cells["ended"](one) for case, one in found.items()} == ENDED
    assert "mismatch between collectives" in found["SUM", 4, 2, "DETAIL"]
    assert "all_reduce(sum)" in found["MAX", 4, 0, "verify=True"]
    assert "stalled" in found["SUM", 1, 2, "none"] and "SIGABRT" in found["SUM", 4, 2, "none"]
    page = pictures.pieces([Try({"asks": "MAX"}, found["MAX", 4, 0, "none"], 1.0)])
    assert page.count(f"{pictures.OWNERS[1]};color") == 2 * 2 + 1  # two elements of each rank, and the key
