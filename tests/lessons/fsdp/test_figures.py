"""The lesson's pictures from known tables: their findings, their numbers in words, what they refuse."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.fsdp import figures as training
from labkit.report import Report


def report(**tables: pd.DataFrame) -> Report:
    return Report("t", "t", "gloo · cpu", tables)


def curve(route: str, *losses: float) -> list[tuple[str, int, float]]:
    return [(route, i + 1, loss) for i, loss in enumerate(losses)]


def curves(*rows: list[tuple[str, int, float]]) -> pd.DataFrame:
    return pd.DataFrame([r for each in rows for r in each], columns=["route", "step", "loss"])


def test_a_curve_that_leaves_the_others_is_the_finding():
    alike = curves(curve("one process", 2, 1), curve("a", 2, 1))
    assert training.figure(report(curves=alike)).summary.startswith("All 2 learn the same")
    apart = curves(curve("one process", 2, 1), curve("a", 2, 1), curve("b", 2, 1.5))
    said = training.figure(report(curves=apart)).summary
    assert (
        said.startswith("b learns something else than one process, and 1 the same")
        and "b: 1.500 after 2 steps" in said
    )


def test_the_order_of_calls_is_written_out():
    table = pd.DataFrame(
        [{"way": "as written", "pass": "forward", "calls": "all_gather wait mm", "products between": 0}]
    )
    assert "as written, forward: all_gather wait mm" in training.figure(report(order=table)).summary


def test_what_is_empty_or_unknown_is_said():
    assert "nothing was measured" in training.figure(report(curves=curves())).summary
    with pytest.raises(ValueError, match="report 't' has no picture: it has words"):
        training.figure(report(words=pd.DataFrame()))
    with pytest.raises(ValueError, match="table 'order' has no column 'calls'"):
        training.figure(report(order=pd.DataFrame({"way": ["x"], "pass": ["y"]})))
