"""The drawing of a graph by streams: edges of values and edges that were added, none of them on another."""

from __future__ import annotations

import itertools

from course.compiled_streams import figures
from course.compiled_streams.figures import stream_graph
from course.shared.streams.graph import GraphNode, StreamGraph

HAND_OVER = (
    GraphNode("x", "input", "x"),
    GraphNode("sin", "kernel", "sin", needs=("x",), reads=("x",), writes=("sin",)),
    GraphNode("deps", "record_event", "control_deps", needs=("sin",), arguments=("e1", "default")),
    GraphNode("getitem", "view", "getitem", needs=("deps",)),
    GraphNode("wait", "wait_event", "control_deps", needs=("deps",), arguments=("e1", "s1")),
    GraphNode("cos", "kernel", "cos", "s1", needs=("getitem",), reads=("sin",), writes=("cos",)),
)


def test_values_and_added_edges_are_told_apart():
    found = stream_graph(StreamGraph("forward graph", HAND_OVER, ""))
    assert found.summary.startswith("forward graph: 1 edge of values, 3 that the compiler added.")
    for edge in ("sin -> record_event e1 default", "record_event e1 default -> cos"):
        assert edge in found.summary
    assert "wait_event e1 s1 -> cos" not in found.summary  # on torch 2.13


def test_without_control_deps_the_operators_have_no_edge():
    bare = tuple(
        GraphNode(**{**vars(n), "needs": ()}) if n.arguments else n for n in HAND_OVER if n.word != "view"
    )
    bare = (*bare[:-1], GraphNode("cos", "kernel", "cos", "s1", ("sin",), ("sin",), ("cos",)))
    drawn = stream_graph(StreamGraph("Dynamo's graph", bare, ""))
    assert drawn.summary.startswith("Dynamo's graph: nothing ties the stream operators to the values")


def test_edges_on_one_track_do_not_meet():
    edges = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    by_track = {}
    for edge, track in figures._tracks(edges).items():
        by_track.setdefault(track, []).append(edge)
    for others in by_track.values():
        assert all(a[1] < b[0] for a, b in itertools.pairwise(sorted(others)))


def test_the_label_says_where_a_graph_comes_from():
    label = "captured with torch 2.15.0, 2026-11-22"
    shipped = StreamGraph("forward graph", HAND_OVER, "", "2.15.0", label)
    assert stream_graph(shipped).summary.endswith(f"[{label}]")
    assert stream_graph(StreamGraph("forward graph", HAND_OVER, "")).summary.endswith("[captured here]")
