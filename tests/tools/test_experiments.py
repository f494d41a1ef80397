"""The page of the sources' experiments: nothing in it that is not there, and no experiment of the lists left out."""

from __future__ import annotations

import tomllib

import pytest

from labkit import files
from tools import course, experiments

ROWS = tomllib.loads(files.ours("data/experiments.toml").read_text())["experiment"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"facts": ["breaks.nothing"]}, "breaks.nothing"),
        ({"run": "05"}, "the cell is in 04_graph_break_cliff, and the command runs lesson 05"),
        ({"run": "04 BLOKS=8"}, "Topic 11, 1 has no parameter 'BLOKS'"),
        ({"run": "04 BLOCKS=0"}, "BLOCKS has to be a whole number from 1 to 1000, got '0'"),
        ({"cell": "no cell has this"}, "0 code cells of 04_graph_break_cliff have 'no cell has this'"),
        ({"cell": "import"}, "code cells of 04_graph_break_cliff have 'import'"),
    ],
)
def test_a_row_that_names_what_is_not_there_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        experiments.page([ROWS[0] | change])


def test_a_row_says_where_how_and_what_came_of_it():
    text = experiments.page(ROWS[:1])
    (line,) = [line for line in text.splitlines() if line.startswith("| **Topic 11, 1.**")]
    _, asks, where, command, needs, outcome, _ = line.split("|")
    assert "04_graph_break_cliff.ipynb), In [" in where and "`labkit run 04`" in command
    assert needs.strip() == "2 ranks, any machine" and "breaks.disabled-collective: *" in outcome
    assert "breaks.disabled-collective" in text.partition("What was measured")[2]


def test_all_experiments_of_the_sources_are_there_each_with_its_facts():
    assert len(ROWS) == len({row["source"] for row in ROWS}) == 23
    assert all(row["facts"] for row in ROWS)


def test_the_page_is_as_the_ledger_and_the_lessons_are():
    page = course.ROOT / experiments.PAGE
    assert page.read_text() == experiments.page(), "`make map` writes it"
