"""The pictures of worlds that are not here: what is modelled or simulated is labelled so, in words too."""

from __future__ import annotations

import pandas as pd
import pytest

from course.scale import figures as scale

WORLDS = [2, 3, 4, 64, 1024]


def model(slope: float = 1e-5) -> pd.DataFrame:
    """Work that shrinks and communication that grows with the world, in seconds."""
    found = pd.DataFrame(
        {"work": [0.04 / p for p in WORLDS], "communication": [slope * p for p in WORLDS]}, WORLDS
    )
    return found.assign(step=found.sum(axis=1), share=lambda t: t["communication"] / t["step"])


def test_the_curve_is_the_model():
    figure = scale.curves(model(), "modelled, stated constants")
    (total,) = (
        line for line in figure.axes[0].lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 1
    )
    assert list(total.get_xdata()) == WORLDS
    assert list(total.get_ydata()) == pytest.approx(list(1e3 * model()["step"]))
    assert figure.summary.endswith("[modelled, stated constants]")


def test_shares_and_where_they_pass_a_half_are_read_off_the_grid():
    figure = scale.curves(model(), "modelled")
    (ax,) = (ax for ax in figure.axes if ax.get_ylabel() == "communication, % of the step")
    assert list(ax.lines[0].get_ydata()) == list(model()["share"])
    assert "communication's part of the step, at least half from 64 ranks on" in figure.summary
    assert "always less than half" in scale.curves(model(slope=0), "modelled").summary


def test_what_was_not_measured_is_said_and_the_minimum_is_marked():
    found = model()
    figure = scale.curves(found, "modelled", measured={1: 0.05, 2: 0.04})
    marks = [line for ax in figure.axes for line in ax.lines if line.get_marker() == "o"]
    assert [mark.get_xdata()[0] for mark in marks] == [found["step"].idxmin(), 64]
    assert "Grey: up to 2 ranks, where steps were timed; beyond, the formula alone" in figure.summary
    (timed,) = (line for line in figure.axes[0].lines if line.get_marker() == "X")
    assert (list(timed.get_xdata()), list(timed.get_ydata())) == ([1, 2], [50.0, 40.0])
    assert "measured on 1 rank: 50 ms. measured on 2 ranks: 40 ms" in figure.summary


def test_each_policy_is_a_line_and_a_sentence_beside_the_slowest_measured_compile():
    rows = [(policy, p, p * 0.9, p * 1.0, p * 1.1) for policy in ("one <b>", "all") for p in (2, 64)]
    found = pd.DataFrame(rows, columns=["policy", "ranks", "p10", "ready s", "p90"])
    figure = scale.starts(found, "simulated", slowest=80.0)
    ax = figure.axes[0]
    assert [list(line.get_ydata()) for line in ax.lines] == [[2.0, 64.0]] * 2 + [[80.0, 80.0]]
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 80
    assert "all: the last of 64 ranks is ready after 64 s" in figure.summary
    assert figure.summary.endswith("[simulated]") and figure.png()[:4] == b"\x89PNG"
    assert len(scale.starts(found, "simulated").axes[0].lines) == 2


def test_the_title_of_the_starts_says_which_policy_is_ready_first():
    def title(*seconds, spread=0.0):
        found = pd.DataFrame({"policy": ["one", "all"], "ranks": 8, "ready s": seconds})
        band = {"p10": found["ready s"] - spread, "p90": found["ready s"] + spread}
        return scale.starts(found.assign(**band), "simulated").summary

    assert title(2.0, 3.0).startswith('The last of 8 ranks is ready soonest under the policy "one". ')
    assert title(3.0, 2.0).startswith('The last of 8 ranks is ready soonest under the policy "all". ')
    assert title(3.0, 2.0, spread=0.6).startswith(
        "Not enough to tell which policy is sooner on 8 ranks: 2 to 3 s, and their bands overlap. "
    )
