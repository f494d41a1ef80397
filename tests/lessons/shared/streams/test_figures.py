"""Stream timelines drawn, simulated and live alike; programs drawn as queues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.patches import FancyArrowPatch

from course.shared.streams import Program, simulate
from course.shared.streams_figures import timeline
from course.streams.queue_figures import queues


def handed_over(wait: bool = True, length: float = 4.0) -> Program:
    p = Program("hand over", streams="side")
    p.kernel("produce", length, writes="x")
    p.record("made")
    if wait:
        p.wait("made", "side")
    p.kernel("consume", 2, on="side", reads="x")
    return p


def texts(figure) -> list[str]:
    return [t.get_text() for ax in figure.axes for t in ax.texts] + [t.get_text() for t in figure.texts]


def test_a_timeline_names_its_lanes_kernels_label_and_race():
    figure = timeline(simulate(handed_over()))
    said = texts(figure)
    assert {"default", "side", "produce", "consume", "simulated"} <= set(said)
    assert figure.summary == "hand over: 6 units, no race. [simulated]"
    axis = next(ax for ax in figure.axes if ax.get_label().startswith("timeline"))
    assert axis.get_xlabel() == "time, units (as the program states them)"
    assert "hand over: 4 units, 1 race (missing wait)" in texts(timeline(simulate(handed_over(wait=False))))


def test_a_measured_run_goes_through_the_same_view_and_says_nothing_of_races():
    live = replace(simulate(handed_over()), label="gloo · cpu", unit="ms")
    assert "time, ms" in [ax.get_xlabel() for ax in timeline(live).axes]
    assert timeline(live).summary == "hand over: 6 ms. [gloo · cpu]"


def test_simulated_and_measured_never_share_an_axis():
    run = simulate(handed_over())
    with pytest.raises(ValueError, match="need one label, got 'simulated', 'gloo · cpu'"):
        timeline({"a": run, "b": replace(run, label="gloo · cpu")})
    with pytest.raises(ValueError, match="need one unit"):
        timeline({"a": run, "b": replace(run, unit="ms")})


def test_several_timelines_share_their_axis():
    figure = timeline({"short": simulate(handed_over()), "long": simulate(handed_over(length=9))})
    panels = [ax for ax in figure.axes if ax.get_label().startswith("timeline")]
    assert len({ax.get_xlim() for ax in panels}) == 1
    assert "short: 6 units, no race. long: 11 units, no race." in figure.summary


def test_nothing_is_drawn_as_nothing():
    assert "nothing ran" in timeline(simulate(Program("empty"))).summary


def test_queues_show_the_mark_that_a_wait_took_and_the_mistake():
    early = Program("early", streams="side")
    early.wait("made", "side")
    early.kernel("produce", 4, writes="x")
    early.record("made")
    early.kernel("consume", 2, on="side", reads="x")
    figure = queues({"right": handed_over(), "early": early})
    assert figure.summary == "right: no race. early: 1 race (wait before record). [simulated]"
    right, wrong = (ax for ax in figure.axes if ax.get_label().startswith("queues"))
    boxes, arrows = patches(right)
    assert [word for word in texts(figure) if word == "record\nmade"] == ["record\nmade"] * 2
    assert len(boxes) == 4 and len(arrows) == 1 and not any(box.get_linestyle() == "--" for box in boxes)
    boxes, arrows = patches(wrong)
    assert not arrows and [box.get_linestyle() for box in boxes].count("--") == 1


def patches(ax) -> tuple[list, list]:
    arrows = [one for one in ax.patches if isinstance(one, FancyArrowPatch)]
    return [one for one in ax.patches if one not in arrows], arrows


def test_memory_that_changes_hands_has_a_row_of_its_own():
    p = Program("handed", streams="side")
    p.alloc("x")
    p.kernel("make", 1, writes="x")
    p.wait_stream("default", on="side")
    p.kernel("use", 5, on="side", reads="x")
    p.free("x")
    p.alloc("z")
    p.kernel("overwrite", 1, writes="z")
    said = texts(queues(p))
    assert {"host", "free\nx", "z gets\nit again"} <= set(said)
    assert "handed: 1 race (cross-stream free)" in said
