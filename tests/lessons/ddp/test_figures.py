"""The pipeline's picture from a known table."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.ddp import figures as training
from labkit.report import Report


def report(**tables: pd.DataFrame) -> Report:
    return Report("t", "t", "gloo · cpu", tables)


def test_the_bubble_stands_beside_the_formula():
    table = pd.DataFrame({"microbatches": [1, 4], "stood still": [0.5, 0.25], "formula": [0.5, 0.2]})
    said = training.figure(report(summary=table)).summary
    assert said.startswith("Stages stand still 50% of a step with 1 microbatch, 25% with 4")


def test_what_is_empty_or_unknown_is_said():
    with pytest.raises(ValueError, match="report 't' has no picture: it has words"):
        training.figure(report(words=pd.DataFrame()))
