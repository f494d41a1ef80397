"""Real stream graphs, made in a child process: as data, simulated, checked for races, run on threads."""

from __future__ import annotations

import math

import pytest

from course.compiled_streams.threads import tried
from course.shared.streams import StreamError, simulate
from course.shared.streams.captured import capture, in_a_child

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def waits(x, side):
    a = torch.sin(x)
    done = torch.Event()
    done.record()
    with side:
        done.wait()
        b = torch.cos(a)
    torch.accelerator.current_stream().wait_stream(side)
    return b + 1


def forgets(x, side):
    a = torch.sin(x)
    done = torch.Event()
    done.record()
    with side:
        b = torch.cos(a)
    torch.accelerator.current_stream().wait_stream(side)
    return b + 1


def two_streams(x, y, one, two):
    with one:
        a = torch.sin(x) * y
    with two:
        b = torch.cos(x) * y
    return a + b


@pytest.fixture(scope="module")
def graphs():
    x = torch.linspace(0, 1, 4)
    return {fn.__name__: capture(fn, x).forward[0] for fn in (waits, forgets)}


def test_a_real_graph_is_a_program_in_which_a_forgotten_wait_is_found(graphs):
    assert [race.cause for race in graphs["forgets"].races()] == ["missing wait"]
    assert graphs["waits"].races() == ()
    graph = graphs["waits"]
    assert graph.streams == ["s1"]
    assert [n.stream for n in graph.nodes if n.word == "kernel"] == ["default", "s1", "default"]
    assert {n.word for n in graph.nodes} >= {"record_event", "wait_event", "wait_stream"}
    found = simulate(graph.program(lambda node: 5 if node.name == "sin" else 1))
    assert found.label == "simulated" and found.makespan == 7


def test_the_wrong_values_of_a_missing_wait():
    x = torch.linspace(0, 1, 4)
    good, bad = (in_a_child(tried, fn, (x,), 1, 0.3) for fn in (waits, forgets))
    assert [run.values for run in good[1]] == [
        good[1][0].expected
    ] * 4  # as it is, and each of three kernels late
    late = bad[1][1]  # sin, which nothing lets cos wait for
    assert all(map(math.isnan, late.values[0])) and late.expected == good[1][0].expected
    assert late.inputs == [x.tolist()]


def test_gradients_have_their_own_graph():
    x, y = (torch.ones(4, requires_grad=True) for _ in range(2))
    found = capture(two_streams, x, y, streams=2, gradients=True)
    (backward,) = found.backward
    assert backward.streams and {"record_event", "wait_event"} <= {n.word for n in backward.nodes}
    assert "backward graph: " in repr(found)


def test_what_does_not_compile_says_why():
    def breaks(x, side):
        x.mul_(2)
        done = torch.Event()
        done.record()
        with side:
            done.wait()
            return x + 1

    found = capture(breaks, torch.ones(4))
    assert "event was recorded" in found.error and repr(found).startswith("not compiled")
    assert in_a_child(tried, breaks, (torch.ones(4),), 1, 0.0) == (found, [])


def test_names_and_numbers_are_checked():
    with pytest.raises(StreamError, match="streams must be a number from 1 to 16, got 0"):
        capture(waits, torch.ones(2), streams=0)
