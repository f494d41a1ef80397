"""The stage explorer: every stage of every rank within reach, and a static twin that says the same."""

from __future__ import annotations

import pytest

from course.reading.stages import Stages
from labkit.records import STAGES, Frame, Frames
from labkit.records.reasons import Break

GRAPH = 'class G(torch.nn.Module):\n    def forward(self, x: "f32[4]"):\n        y: "f32[4]" = x * 2\n        return y'


def frames() -> Frames:
    why = Break("GB0059", "Failed to trace <b>", "print", "In [3]:2 (f)")
    parts = []
    for rank in (0, 1):
        raw = {"source": "    1   def f(x):", "dynamo": GRAPH.replace("2", str(2 + rank))}
        parts.append(
            Frame("0/0", "f", "In [3]:1 (f)", rank, "f", 1, raw=raw, missing={"inductor": "not Inductor"})
        )
        parts.append(Frame("1/0", "g", "In [3]:5 (g)", rank, "g", 1, breaks=why, raw=raw))
    return Frames(parts, label="gloo · cpu")


def test_the_static_twin_names_every_frame_and_its_stages():
    figure, text = (view := Stages(frames())).figure, view.text
    assert "rank 1: 0/0 f at In [3]:1: 1 operation" in text and "ends in a graph break" in text
    assert "rank 0: 0/0 f at In [3]:1 has source, dynamo" in figure.summary
    assert figure.summary.endswith("[gloo · cpu]")


def test_the_widget_shows_each_stage_of_each_rank_and_why_one_is_missing():
    ipywidgets = pytest.importorskip("ipywidgets")
    view = Stages(frames())
    head, stage, options, picture, text = view.widget.children
    rank, frame = head.children
    assert [label for label, _ in rank.options] == ["rank 0", "rank 1"] and list(stage.options) == list(
        STAGES
    )
    stage.value = "dynamo"
    assert "x * 2" in text.value
    rank.value = 1
    assert "x * 3" in text.value
    stage.value = "inductor"
    assert "not Inductor" in text.value
    frame.value = 1
    assert "GB0059 · Failed to trace &lt;b&gt;" in text.value
    stage.value = "dynamo"
    options.children[1].value = True
    assert picture.layout.display is None and bytes(picture.value).startswith(b"\x89PNG")
    assert isinstance(view.widget, ipywidgets.Widget)
    view.close()


def test_frames_of_which_there_is_none_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="hidden from the compiler"):
        Stages(Frames([], ["f is hidden from the compiler"]))
    with pytest.raises(ValueError, match="got a list"):
        Stages([])
