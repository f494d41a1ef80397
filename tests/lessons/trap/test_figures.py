"""The picture of a recorded sweep: every ratio in words, and in a panel of its evidence."""

from __future__ import annotations

import pandas as pd
import pytest

from course.trap import figures as eager_trap
from labkit.report import Report

CELLS = [
    ("shm · cpu", "all_reduce", 4, "done", "slower", 2.5, 2.0, 3.0),
    ("shm · cpu", "all_reduce", 16384, "done", "cannot tell", 1.1, 0.8, 1.5),
    ("shm · cpu", "all_reduce", 4, "control", "cannot tell", 1.0, 0.9, 1.1),
    ("host only", "all_gather", 4, "done", "faster", 0.7, 0.6, 0.8),
    ("host only", "all_gather", 16384, "done", "slower", 4507.0, 4000.0, 5000.0),
]
COLUMNS = ["evidence", "collective", "bytes", "stage", "outcome", "ratio", "low", "high"]


def made(verdicts: pd.DataFrame | None = None) -> Report:
    verdicts = pd.DataFrame(CELLS, columns=COLUMNS) if verdicts is None else verdicts
    return Report("eager_trap", "t", "shm · cpu", {"verdicts": verdicts})


def texts(figure) -> list[str]:
    return [t.get_text() for ax in figure.axes for t in ax.texts] + [t.get_text() for t in figure.texts]


def test_every_ratio_is_in_words_and_controls_are_left_out():
    figure = eager_trap.figure(made())
    assert figure.png()[:4] == b"\x89PNG"
    assert "Functional in eager is slower in 2 of 4 comparisons" in figure.summary
    assert "shm · cpu, all_reduce: 4 B 2.50 slower, 16 KB 1.10 cannot tell" in figure.summary
    assert "host only, all_gather: 4 B 0.70 faster, 16 KB 4507.00 slower" in figure.summary
    assert "shm · cpu, host only" in texts(figure)


def test_every_point_lies_in_its_panel():
    figure = eager_trap.figure(made())
    panels = {ax.get_label(): ax for ax in figure.axes if ax.get_label().startswith("sizes ")}
    assert set(panels) == {"sizes shm · cpu", "sizes host only"}
    low, high = panels["sizes host only"].get_ylim()
    assert low < 0.7 and high > 4507


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(ValueError, match="no figure 'strip' of this report: there is sizes"):
        eager_trap.figure(made(), "strip")
    with pytest.raises(ValueError, match="no table 'verdicts': it has other"):
        eager_trap.figure(Report("e", "t", "x", {"other": pd.DataFrame()}))
    with pytest.raises(ValueError, match="ratio"):
        eager_trap.figure(made(pd.DataFrame(CELLS, columns=COLUMNS).drop(columns="ratio")))


def test_an_empty_table_says_so():
    empty = made(pd.DataFrame(columns=COLUMNS))
    assert "there is nothing to draw" in " ".join(texts(eager_trap.figure(empty)))
