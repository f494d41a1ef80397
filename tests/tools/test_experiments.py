"""The page of the sources' experiments: nothing in it that is not there, and no experiment of the lists left out."""

from __future__ import annotations

import tomllib

import pytest

from labkit import files
from tools import course, experiments

ROWS = tomllib.loads(files.ours("data/experiments.toml").read_text())["experiment"]


WRONG = [
    ({"facts": ["breaks.nothing"]}, "breaks.nothing"),
    ({"run": "04 BLOKS=8"}, "Topic 11, 1 has no parameter 'BLOKS'"),
    ({"cell": "no cell has this"}, "0 code cells of 04_graph_break_cliff have 'no cell has this'"),
]


def test_the_page_is_as_the_ledger_and_the_lessons_are():
    """Each row names its facts, a command that `labkit run` takes, and one cell that is there."""
    page = course.ROOT / experiments.PAGE
    assert page.read_text() == experiments.page(), "`make map` writes it"
    assert len({row["source"] for row in ROWS if row["facts"]}) == len(ROWS) == 23
    for change, said in WRONG:
        with pytest.raises(ValueError, match=said):
            experiments.page([ROWS[0] | change])
