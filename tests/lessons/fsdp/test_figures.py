"""The lesson's pictures from known tables: their findings, their numbers in words, what they refuse."""

from __future__ import annotations

import pandas as pd
import pytest

from course.fsdp import figures
from course.fsdp.moments import COLUMNS


def test_lifetimes_are_told_in_words():
    rows = [
        ("torch's", "root", "whole", 0, 9),
        ("torch's", "blocks.0", "gathering", 0, 2),
        ("torch's", "blocks.0", "whole", 2, 4),
        ("torch's", "blocks.0", "reducing", 4, 9),
        ("torch's", "blocks.1", "gathering", 3, 5),
        ("mine", "blocks.0", "whole", 0, 3),
        ("mine", "blocks.1", "gathering", 3, 5),
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    said = figures.lifetimes(table, "gloo · cpu", "Two blocks at once").summary
    assert said.startswith("Two blocks at once")
    assert "torch's: whole 2 times, gathering 2 times, reducing 1 times" in said and "gloo · cpu" in said


def test_the_order_of_calls_is_written_out():
    said = figures.orders({"as written": "all_gather wait mm".split()}, "gloo · cpu").summary
    assert "as written, 0 of 1: all_gather wait mm" in said


def test_what_is_empty_or_unknown_is_said():
    assert "nothing was measured" in figures.lifetimes(pd.DataFrame(columns=COLUMNS), "gloo", "None").summary
    assert "nothing was compiled" in figures.orders({}, "gloo").summary
    with pytest.raises(ValueError, match="has no column"):
        figures.lifetimes(pd.DataFrame({"route": ["x"]}), "gloo", "None")
