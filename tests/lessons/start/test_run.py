"""Lesson 00 from top to bottom, and what its cells say."""

from __future__ import annotations

import html
import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "00_start_here"
SIZES = (pytest.param("", marks=pytest.mark.guard),)

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def shown(run, cell) -> str:
    """The text of what a cell shows, of folded parts too."""
    (found,) = (one for one in run.notebook.cells if one.get("id") == cell)
    pages = [one["data"]["text/html"] for one in found.outputs if "text/html" in one.get("data", {})]
    return html.unescape(re.sub(r"(?s)<style.*?</style>|<[^>]*>", " ", " ".join(pages)))


def test_the_report_and_its_number_are_folded(run):
    assert "2 graphs" not in run.text("cell-10-l00") and "Graph Count" not in run.text("cell-10-l00")
    first, second = shown(run, "cell-10-l00").split("--- rank 1")
    assert "measured: 2 graphs" in first and "Graph Count: 2\nGraph Break Count: 1" in first
    assert "builtin operator `print`" in first
    assert "Graph Count: 1\nGraph Break Count: 0" in second


def test_no_bench_gives_an_answer_away(run):
    """What a reader sees before the first click, and what all outputs say as text."""
    assert "not as one process" in shown(run, "split-bench-l00")
    assert "8 5" not in " ".join(shown(run, "split-bench-l00").split())
    assert "✂" not in shown(run, "source-l00") and "ranks differ" not in shown(run, "source-l00")
    assert "✂" in shown(run, "source-every-l00") and "ranks differ" in shown(run, "source-every-l00")
    for cell in ("waits-bench-l00", "split-bench-l00", "source-l00", "differ-bench-l00"):
        assert set(run.text(cell).splitlines()) == {run.text(cell).splitlines()[0]}
        assert run.text(cell).startswith("a bench (") and "Run this cell" in shown(run, cell)
    assert run.text("source-every-l00") == "All five lines, before the all_reduce (folded)"


def test_a_line_of_ones_own(run):
    assert run.text("own-line-l00") == "My line (folded)"
    said = " ".join(shown(run, "own-line-l00").split())
    assert "✂" not in run.text("own-line-l00")
    assert "doesn't support `async_op=True" in said and "cannot trace method wait" in said, said
