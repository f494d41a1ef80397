"""The lesson's pictures from known tables: their findings, their numbers in words, what they refuse."""

from __future__ import annotations

import pandas as pd
import pytest

from course.fsdp import figures
from course.fsdp.moments import COLUMNS
from labkit.report import Report


def report(**tables: pd.DataFrame) -> Report:
    return Report("t", "t", "gloo · cpu", tables)


def test_blocks_in_memory_at_once_are_the_finding():
    rows = [
        ("torch's", "root", "whole", 0, 9),
        ("torch's", "blocks.0", "gathering", 0, 2),
        ("torch's", "blocks.0", "whole", 2, 4),
        ("torch's", "blocks.0", "reducing", 4, 9),
        ("torch's", "blocks.1", "gathering", 3, 5),
        ("mine", "blocks.0", "whole", 0, 3),
        ("mine", "blocks.1", "gathering", 3, 5),
    ]
    said = figures.lifetimes(pd.DataFrame(rows, columns=COLUMNS), "gloo · cpu").summary
    assert said.startswith("Blocks in memory at once, at most: 2 (torch's), 1 (mine)")
    assert "torch's: whole 2 times, gathering 2 times, reducing 1 times" in said and "gloo · cpu" in said


def test_the_order_of_calls_is_written_out():
    table = pd.DataFrame(
        [{"way": "as written", "pass": "forward", "calls": "all_gather wait mm", "products between": 0}]
    )
    assert "as written, forward: all_gather wait mm" in figures.figure(report(order=table)).summary


def test_what_is_empty_or_unknown_is_said():
    assert "nothing was measured" in figures.lifetimes(pd.DataFrame(columns=COLUMNS), "gloo").summary
    with pytest.raises(ValueError, match="no table 'order': it has words"):
        figures.figure(report(words=pd.DataFrame()))
    with pytest.raises(ValueError, match="table 'order' has no column 'calls'"):
        figures.figure(report(order=pd.DataFrame({"way": ["x"], "pass": ["y"]})))
