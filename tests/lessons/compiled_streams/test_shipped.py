"""Graphs that are shipped, for a torch that compiles no streams; and the children that make them where it does."""

from __future__ import annotations

import json
import os
import time

import pytest

from course.offload import offload
from course.shared.streams import StreamError, captured, judging, shipped
from labkit import hardware, lessons, torch_compat
from labkit.ranks import RankError, Ranks
from labkit.study.exercises import Mistake
from tools import recapture

torch = pytest.importorskip("torch")

# what a lesson does besides looking at graphs: it takes ranks, or the reader's own answers
ELSEWHERE = "check( my_repair( ledger.run scoreboard( ranks. report overlap. calls (slow, of_way".split()


class NoChild:
    def __init__(self, *given, **named):
        raise AssertionError("a torch without streams starts no child")


@pytest.fixture
def without_streams(monkeypatch):
    monkeypatch.setattr(torch_compat, "has_stream_graphs", lambda: False)
    monkeypatch.setattr(captured, "Ranks", NoChild)


def test_a_kept_graph_is_found_by_source_and_shape():
    def fn(x, side):
        return x

    look, x = captured._capture, torch.ones(4)
    kept = shipped.key(look, (fn, (x,), 1, False))
    assert kept == shipped.key(look, (fn, (torch.zeros(4),), 1, False))
    others = [
        (fn, (torch.ones(5),), 1, False),
        (fn, (torch.ones(4, requires_grad=True),), 1, False),
        (fn, (x,), 2, False),
        (lambda x, side: x + 1, (x,), 1, False),
    ]
    assert kept not in [shipped.key(look, one) for one in others]
    assert kept != shipped.key(captured.compiled, (fn, (x,), 1, False))


def test_what_is_shipped_comes_back_as_it_was(tmp_path):
    graphs = captured.StreamGraphs(
        (), (captured.StreamGraph("g", (captured.GraphNode("a", "kernel", "sin", reads=("x",)),), "text"),)
    )
    found = {
        "none": offload.OffloadGraphs("none", (offload.OffloadNode("mm", "kernel", "mm", flops=8),), (), ())
    }
    for one in (graphs, found, [{"order": 0, "error": ""}], ["x", 1, None]):
        assert shipped._decode(json.loads(json.dumps(shipped._encode(one)))) == one
    with shipped.recording() as record:
        shipped.seen(len, (1,), graphs)
    path = shipped.save(record, "2.13.0", "2026-01-02", tmp_path / "graphs.json")
    assert json.loads(path.read_text())["label"] == "captured with torch 2.13.0, 2026-01-02"
    shipped.seen(len, (2,), graphs)  # no record is open
    assert list(record) == [shipped.key(len, (1,))]


def test_without_streams_the_lesson_shows_what_is_shipped_and_says_so(
    without_streams, monkeypatch, tmp_path, capsys
):
    import labkit

    every = recapture.cells(recapture.LESSON)
    looks = recapture.needed(every)
    assert len(looks) > 3
    sources = [
        one for one in every if one in looks or "labkit.Ranks(" in one or not any(w in one for w in ELSEWHERE)
    ]
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setattr(labkit, "Ranks", lambda *given, **named: None)
    space = recapture.run(sources)
    said, label = capsys.readouterr().out, json.loads(shipped.FILE.read_text())["label"]
    assert said.count(f"{label}: torch {torch.__version__} compiles no streams: torch 2.12 is the first") > 2
    drawn = space["forward"]
    assert (drawn.label, drawn.torch) == (label, label.split()[3].rstrip(",")) and drawn.races() == ()
    assert {row[1] for row in space["rows"]} == {0, 1}


def test_without_streams_a_function_of_ones_own_is_refused_by_name(without_streams):
    def mine(x, side):
        with side:
            return x.sin()

    with pytest.raises(
        torch_compat.UnsupportedTorch, match=r"torch 2.12 is the first.*there is none of mine"
    ):
        captured.capture(mine, torch.ones(4))
    shape = lessons.program("offload").Shape(layers=3)
    with pytest.raises(torch_compat.UnsupportedTorch, match="there is none of traced with these arguments"):
        offload.trace(shape, ["kept"])


def test_torch_2_11_has_the_names_and_no_streams():
    assert torch_compat.has_stream_graphs() != hardware.torch_version().startswith("2.11.")


def test_what_is_shown_of_a_later_torch():
    later = shipped.later()
    graph = later["hand_over"]
    assert graph.label == later["label"] and graph.torch == later["torch"] and "2.15" in graph.torch
    assert not any(graph.shuffled(seed).races() for seed in range(100))
    assert [name for stream, name, _ in later["kernels"]["event_between"]][0] == "triton_poi_fused_add_sin_0"


def test_cells_are_taken_with_what_they_use_and_a_name_within_a_function_takes_no_cell():
    inner = "def other():\n    node = 1\n    look = [x for x in (1,)]\n    return node, look"
    uses = "def g(x):\n    node = x\n    return node + a"
    sources = ["import torch", "a = 1", inner, uses, "capture(g, torch.ones(1))"]
    assert recapture.needed(sources) == [one for one in sources if one is not inner]


def test_code_for_cuda_takes_triton(monkeypatch, capsys):
    def lacks(look, *arguments, **named):
        raise torch_compat.UnsupportedTorch("only with the package triton installed")

    monkeypatch.setattr(recapture.inside, "in_a_child", lacks)
    assert recapture.main(["inductor"]) == 1 and "triton" in capsys.readouterr().err


# --- the children ---


def waits_for_ever():
    while True:
        time.sleep(0.1)


@pytest.mark.slow
def test_a_child_that_does_not_answer_is_ended_by_its_id(monkeypatch):
    started = []

    class Seen(Ranks):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            started.extend(member.process.pid for member in self._pool.members)

    monkeypatch.setattr(captured, "Ranks", Seen)
    with pytest.raises(RankError, match="1 rank|rank 0"):
        captured.in_a_child(waits_for_ever, timeout=1)
    assert started
    until = time.monotonic() + 20
    while any(_runs(pid) for pid in started) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in started)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_an_attempt_that_does_not_end_is_told_so(monkeypatch):
    monkeypatch.setattr(judging, "TIMEOUT_S", 2.0)

    def endless(layers):
        while True:
            time.sleep(0.1)

    with pytest.raises(Mistake) as caught:
        judging.in_its_own_child(endless, 3)
    assert "does not come to an end" in caught.value.hint


@pytest.mark.slow
def test_an_error_of_a_look_is_raised(monkeypatch):
    monkeypatch.setattr(torch_compat, "has_stream_graphs", lambda: True)  # a child runs any function
    with pytest.raises(StreamError, match="no such node"):
        captured.in_a_child(lambda: StreamError("no such node"), ship=False)
