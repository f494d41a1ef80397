"""The lesson's pictures from known tables: their findings, their numbers in words, what they refuse."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.fsdp import figures as training
from labkit.report import Report


def report(**tables: pd.DataFrame) -> Report:
    return Report("t", "t", "gloo · cpu", tables)


def test_the_order_of_calls_is_written_out():
    table = pd.DataFrame(
        [{"way": "as written", "pass": "forward", "calls": "all_gather wait mm", "products between": 0}]
    )
    assert "as written, forward: all_gather wait mm" in training.figure(report(order=table)).summary


def test_what_is_empty_or_unknown_is_said():
    assert "nothing was measured" in training.figure(report(order=pd.DataFrame())).summary
    with pytest.raises(ValueError, match="report 't' has no picture: it has words"):
        training.figure(report(words=pd.DataFrame()))
    with pytest.raises(ValueError, match="table 'order' has no column 'calls'"):
        training.figure(report(order=pd.DataFrame({"way": ["x"], "pass": ["y"]})))
