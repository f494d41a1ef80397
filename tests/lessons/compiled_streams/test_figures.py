"""The drawing of a graph by streams: edges of values and edges that were added, none of them on another."""

from __future__ import annotations

import itertools

from course.compiled_streams import figures
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
    found = figures.stream_graph(StreamGraph("forward graph", HAND_OVER, ""))
    assert found.summary.startswith("forward graph: 1 edge of values, 3 that the compiler added.")


def test_edges_on_one_track_do_not_meet():
    edges = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    by_track = {}
    for edge, track in figures._tracks(edges).items():
        by_track.setdefault(track, []).append(edge)
    for others in by_track.values():
        assert all(a[1] < b[0] for a, b in itertools.pairwise(sorted(others)))
