"""The pictures of lesson 05: every cell in words, outcomes by colour and weight, rings where it stops mattering."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.shared import reference
from labkit.lessons.trap import figures as eager_trap
from labkit.lessons.trap.tables import crossover
from labkit.report import Report
from labkit.timing import Verdict
from labkit.views import style

CELLS = [
    ("shm · cpu", "all_reduce", 4, "done", "slower", 2.5, 2.0, 3.0),
    ("shm · cpu", "all_reduce", 16384, "done", "cannot tell", 1.1, 0.8, 1.5),
    ("shm · cpu", "all_reduce", 4, "control", "cannot tell", 1.0, 0.9, 1.1),
    ("shm · cpu", "all_gather", 4, "done", "faster", 0.7, 0.6, 0.8),
    ("shm · cpu", "all_gather", 16384, "done", "slower", 12.0, 11.0, 14.0),
]
COLUMNS = ["evidence", "collective", "bytes", "stage", "outcome", "ratio", "low", "high"]
PARTS = [
    ("host only", "all_reduce", "in place", 0, "collective", 3.0),
    ("host only", "all_reduce", "in place", 0, "python", 12.0),
    ("host only", "all_reduce", "functional", 0, "collective", 3.0),
    ("host only", "all_reduce", "functional", 0, "wrapping", 40.0),
    ("host only", "all_reduce", "functional", 1, "wrapping", 20.0),
]
STEPS = [
    ("host only", "dist.all_reduce", 12.0, 12.0, ""),
    ("host only", "+ allocation, copy, wait", 18.0, 6.0, "cannot tell"),
    ("host only", "+ autograd registration", 80.0, 62.0, "slower"),
]


def made(**tables) -> Report:
    verdicts = pd.DataFrame(CELLS, columns=COLUMNS)
    found = {
        "verdicts": verdicts,
        "crossover": crossover(verdicts),
        "breakdown": pd.DataFrame(PARTS, columns=["evidence", "collective", "form", "rank", "kind", "us"]),
        "ladder": pd.DataFrame(STEPS, columns=["evidence", "step", "us", "added_us", "than the step before"]),
        "issue": reference.load("issue_138773"),
        "source": reference.load("scope_runs"),
        **tables,
    }
    model = Verdict("functional", "in place", 2.2, 1.9, 2.5, 12, evidence="shm · cpu")
    return Report("eager_trap", "t", "shm · cpu", found, [model])


def texts(figure) -> list[str]:
    return [t.get_text() for ax in figure.axes for t in ax.texts] + [t.get_text() for t in figure.texts]


@pytest.mark.parametrize("which", ["verdicts", "breakdown", "ladder", "crossover", "source"])
def test_every_figure_says_what_it_shows_and_its_label(which):
    figure = eager_trap.figure(made(), which)
    assert figure.summary.startswith(figure.texts[0].get_text()[:20]) and figure.summary.endswith("]")
    assert "shm · cpu" in figure.summary or "host only" in figure.summary
    assert figure.png()[:4] == b"\x89PNG"


def test_cells_tell_outcomes_by_colour_and_by_weight():
    figure = eager_trap.figure(made(), "verdicts")
    assert "slower in 2 of 4 comparisons" in figure.summary
    assert "all_gather, until the result is there: 4 B faster 0.70, 16 KB slower 12.00" in figure.summary
    (ax,) = (ax for ax in figure.axes if ax.get_label() == "verdicts shm · cpu")
    assert sorted(patch.get_gid() for patch in ax.patches) == sorted(row[4] for row in CELLS)
    weights = {text.get_text(): text.get_fontweight() for text in ax.texts}
    assert weights["2.50×"] == "bold" and weights["1.10×"] == "normal"
    for shade in [*eager_trap.OUTCOMES.values(), *(shade for shade, _ in eager_trap.KINDS.values())]:
        assert style.contrast(style.ink_on(shade), shade) >= 4.5


def test_the_breakdown_takes_the_slowest_rank():
    figure = eager_trap.figure(made(), "breakdown")
    assert "43 us functional and 15 us in place" in figure.summary
    assert "wrapping 40.0" in figure.summary and "wrapping 20.0" not in figure.summary


def test_the_crossover_is_ringed_only_where_there_is_one():
    figure = eager_trap.figure(made(), "crossover")
    rings = [line for ax in figure.axes for line in ax.lines if line.get_gid() == "crossover"]
    assert len(rings) == 1 and rings[0].get_xdata()[0] == 16384
    assert "all_reduce: 4 B 2.50, 16 KB 1.10; from 16 KB on not told slower" in figure.summary
    assert "all_gather: 4 B 0.70, 16 KB 12.00; slower at the largest size" in figure.summary


def test_the_dearest_layer_is_named_where_the_model_was_not_measured():
    assert "autograd registration, 62 us a call" in eager_trap.figure(made(), "ladder").summary


def test_the_ladder_says_what_first_uses_are_in_the_model_and_what_is_not_explained():
    parts = {"extra": 20.0, "calls": 12.0, "rest": 8.0, "first use": 11.0}
    rows = [("host only", part, 160, ms, ms - 1, ms + 1) for part, ms in parts.items()]
    extra = pd.DataFrame(rows, columns=["evidence", "part", "collectives", "ms", "p10_ms", "p90_ms"])
    said = eager_trap.figure(made(extra=extra), "ladder").summary
    assert said.startswith(
        "In the model (host only), first uses of asynchronous tensors are 55% of the extra time"
    )
    assert "160 such calls, up to the first use, against as many in place: +12.0 ms" in said
    assert "first uses +11.0 (+10.0 to +12.0). Not explained by such calls: +8.0 ms" in said


def test_the_source_stands_beside_what_was_measured():
    said = eager_trap.figure(made(), "source").summary
    for words in (
        "here, shm · cpu, the model: 2.20",
        "issue 138773, torch 2.4, AllReduce: 1.67",
        "frames/s: 1.08",
    ):
        assert words in said
    with pytest.raises(ValueError, match="no call of 1 KB was measured: there are 4 B, 16 KB"):
        eager_trap.figure(made(), "source", nbytes=1024)


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(ValueError, match="no figure 'strip' of this report: there are verdicts"):
        eager_trap.figure(made(), "strip")
    with pytest.raises(ValueError, match="no table 'verdicts': it has other"):
        eager_trap.figure(Report("e", "t", "x", {"other": pd.DataFrame()}))
    with pytest.raises(ValueError, match="ratio"):
        eager_trap.figure(made(verdicts=pd.DataFrame(CELLS, columns=COLUMNS).drop(columns="ratio")))
    with pytest.raises(ValueError, match="no evidence 'nccl' in table 'breakdown': there are host only"):
        eager_trap.figure(made(), "breakdown", evidence="nccl")


@pytest.mark.parametrize("which", ["verdicts", "breakdown", "ladder", "crossover"])
def test_an_empty_table_says_so(which):
    empty = {name: made().tables[name].iloc[:0] for name in ("verdicts", "breakdown", "ladder")}
    assert "there is nothing to draw" in " ".join(texts(eager_trap.figure(made(**empty), which)))
