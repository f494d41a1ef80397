"""Stream timelines drawn: one view for simulated, recorded and live; redrawn by controls; the calculator."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from labkit.lessons.shared.redraw import redraw
from labkit.lessons.shared.streams import Program, Timeline, simulate
from labkit.lessons.shared.streams_figures import timeline, timeline_text
from labkit.lessons.streams.condition import condition
from labkit.lessons.streams.condition_figures import calculator
from labkit.report import Report


def handed_over(wait: bool = True, length: float = 4.0) -> Program:
    p = Program("hand over", streams="side")
    p.kernel("produce", length, writes="x")
    p.record("made")
    if wait:
        p.wait("made", "side")
    p.kernel("consume", 2, on="side", reads="x")
    return p


def texts(figure) -> list[str]:
    written = [t.get_text() for ax in figure.axes for t in ax.texts] + [t.get_text() for t in figure.texts]
    return written + [
        word for ax in figure.axes for one in ax.collections for word in getattr(one, "words", [])
    ]


def test_a_timeline_names_its_lanes_kernels_and_label():
    figure = timeline(simulate(handed_over()))
    said = texts(figure)
    assert {"default", "side", "produce", "consume", "simulated"} <= set(said)
    assert figure.summary == "hand over: 6 units, no race. [simulated]"
    axis = next(ax for ax in figure.axes if ax.get_label().startswith("timeline"))
    assert axis.get_xlabel() == "time, units (as the program states them)"


def test_a_race_is_boxed_and_said():
    figure = timeline(simulate(handed_over(wait=False)))
    said = " ".join(texts(figure))
    assert "1 race (missing wait)" in said and "kernel 'consume' on 'side' may read 'x'" in said
    (boxes,) = [one for ax in figure.axes for one in ax.collections if one.get_label() == "races"]
    assert len(boxes.get_paths()) == 2 and texts(figure).count("1") == 2


def test_words_cost_one_artist_however_many_and_numbers_stand_beside_each_other():
    p = Program("three", streams="a b")
    p.kernel("w", 1, writes="x")
    for stream in p.streams[1:]:
        p.kernel(f"r {stream}", 1, on=stream, reads="x")
    figure = timeline(simulate(p))
    axis = next(ax for ax in figure.axes if ax.get_label().startswith("timeline"))
    assert {"w", "r a", "r b"} <= set(texts(figure)) and len(axis.patches) == 0
    names, numbers = [one for one in axis.collections if hasattr(one, "words")]
    assert sorted(names.words) == ["r a", "r b", "w"] and sorted(numbers.words) == ["1", "1", "2", "2"]
    assert len({tuple(place) for place in numbers.get_offsets()}) == 4


def test_a_recording_goes_through_the_same_view(tmp_path):
    run = simulate(handed_over())
    live = replace(
        run, label="gloo · cpu", unit="ms", path=None, provenance={"hardware": "a box", "date": "2026-11-21"}
    )
    back = Timeline.of_report(Report.load(live.report().save(tmp_path)))
    assert "recorded on a box, 2026-11-21" in texts(timeline(back))
    assert "time, ms" in [ax.get_xlabel() for ax in timeline(live).axes]
    assert timeline_text(live) == "hand over: 6 ms"
    assert live.report().figure().summary == "hand over: 6 ms. [gloo · cpu]"


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


def test_controls_draw_again():
    found = redraw(handed_over, wait=True, length=(1, 9, 4))
    assert found.text == "hand over: 6 units, no race"
    box = found.widget
    controls = {c.description: c for c in box.children[0].children}
    before = bytes(box.children[1].value)
    controls["wait"].value = False
    assert bytes(box.children[1].value) != before and "missing wait" in box.children[2].value
    controls["length"].value = 9.0
    assert "9 units" in box.children[2].value
    found.close()


def test_a_choice_that_cannot_be_says_so_and_keeps_the_picture():
    found = redraw(handed_over, length=[4, -1])
    box = found.widget
    before = bytes(box.children[1].value)
    box.children[0].children[0].value = -1
    assert "a duration is a number of 0 or more" in box.children[2].value
    assert bytes(box.children[1].value) == before
    found.close()


@pytest.mark.parametrize("wrong", [(1, 2), (5, 1, 3), [], "text", (1, 4, 9)])
def test_a_control_is_one_of_three_things(wrong):
    with pytest.raises(ValueError, match="control 'length' must be a list, True or False"):
        redraw(handed_over, length=wrong)


def test_two_hundred_ops_are_drawn_at_once():
    p = Program("200", streams="a b c")
    for i in range(50):
        one, other = p.streams[i % 4], p.streams[(i + 1) % 4]
        p.kernel(f"k{i}", 1, on=one, writes=f"b{i}")
        p.record(f"e{i}", one)
        p.wait(f"e{i}", other)
        p.kernel(f"u{i}", 1, on=other, reads=f"b{i}")
    begun = time.perf_counter()
    assert timeline(simulate(p)).png().startswith(b"\x89PNG")
    assert len(p) == 200 and time.perf_counter() - begun < 15  # benchmarks/streams.py has what it takes


def test_the_calculator_says_what_can_be_hidden():
    found = calculator(mib=256, gflop=2000, tflops=400, gbytes_per_s=25, ranks=8)
    assert found.text == (
        "all-reduce 19 ms, compute 5 ms: 26% of it can be hidden, and at best the step takes 19 ms instead of 24 ms"
    )
    assert found.figure.summary.endswith("[calculated]")
    box = found.widget
    before = bytes(box.children[-2].value)
    box.children[0].value = 1.0
    assert bytes(box.children[-2].value) != before and "all of it" in box.children[-1].value
    found.close()


def test_the_condition_is_arithmetic():
    found = condition(size=8e9, bandwidth=1e9, work=2e12, rate=1e12, ranks=4, latency=0.5)
    assert (found.communication, found.compute) == (15.0, 2.0)
    assert found.hidden == 2 / 15 and found.exposed == 13.0 and found.speedup == 17 / 15
    assert condition(0, 1, 1, 1).hidden == 1.0
    for name in ("bandwidth", "rate"):
        with pytest.raises(ValueError, match=f"{name} must be a number above 0"):
            condition(**{"size": 1, "bandwidth": 1, "work": 1, "rate": 1, name: 0})
    with pytest.raises(ValueError, match="ranks must be a whole number"):
        condition(1, 1, 1, 1, ranks=0)
