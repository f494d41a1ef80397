"""The training lesson's pictures from known tables: their findings, their numbers in words, what they refuse."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.ddp import figures as training
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


def test_memory_is_that_of_the_rank_that_holds_most():
    sizes = {"parameters": 1000, "gradients": 1000, "Adam's moments": 2000, "peak of a step": 1500}
    rows = [("a", rank, what, size * (1 + rank)) for rank in (0, 1) for what, size in sizes.items()]
    figure = training.figure(report(memory=pd.DataFrame(rows, columns=["route", "rank", "what", "bytes"])))
    assert "a: 8 kB kept, 9 kB at most" in figure.summary


def test_starts_are_drawn_for_every_rank_and_counted_before_the_end():
    rows = [("cut", 0, "backward", 0.4), ("cut", 1, "backward", 0.5), ("whole", 0, "backward", 1.1),
            ("whole", 1, "backward", 1.2), ("whole", 0, "forward", float("nan"))]  # fmt: skip
    table = pd.DataFrame(rows, columns=["route", "rank", "phase", "share"])
    figure = training.figure(report(collectives=table))
    assert figure.summary.startswith("Started while products are left: cut 2, whole 0")
    assert "whole: 1 collectives in backward, rank 0 at 110 %" in figure.summary
    assert len(figure.axes[0].lines) == 2 * 2 + 1


def test_the_order_of_calls_is_written_out():
    table = pd.DataFrame(
        [{"way": "as written", "pass": "forward", "calls": "all_gather wait mm", "products between": 0}]
    )
    assert "as written, forward: all_gather wait mm" in training.figure(report(order=table)).summary


def test_the_bubble_stands_beside_the_formula():
    table = pd.DataFrame({"microbatches": [1, 4], "stood still": [0.5, 0.25], "formula": [0.5, 0.2]})
    said = training.figure(report(summary=table)).summary
    assert said.startswith("Stages stand still 50% of a step with 1 microbatch, 25% with 4")


def test_what_is_empty_or_unknown_is_said():
    assert "nothing was measured" in training.figure(report(curves=curves())).summary
    with pytest.raises(ValueError, match="report 't' has no picture: it has words"):
        training.figure(report(words=pd.DataFrame()))
    with pytest.raises(ValueError, match="table 'order' has no column 'calls'"):
        training.figure(report(order=pd.DataFrame({"way": ["x"], "pass": ["y"]})))
