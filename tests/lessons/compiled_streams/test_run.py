"""Lesson 07 from top to bottom: orders that graphs permit, solutions, an event after a changed input, the cache."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

from course.compiled_streams import patterns

LESSON = "07_streams_in_compile"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_orders_race_where_no_edge_leads_from_the_wait_to_what_it_protects(run):
    bare = run.text("cell-07-ac0950c0")
    assert "Dynamo's graph: nothing ties the stream operators to the values." in bare
    # 6! orders of three kernels and three stream operators, of which values leave a sixth
    assert "as it is: 0 races; 119 of 120 orders race, such as" in run.text("cell-09-24177f5f")
    said = run.text("cell-14-25d6dec0")
    racing, free = (len(re.findall(rf"^{word} +sin -> ", said, re.M)) for word in ("race", "no race"))
    assert f"measured: {racing} orders" in said and free >= 1
    tied = "wait_event e1 s1 -> cos" in said
    assert tied == ("cos takes its value through the wait" in said) == (racing == 0)
    for edge in ("sin -> record_event e1 default", "record_event e1 default -> wait_event e1 s1"):
        assert f"{edge}." in said
    version = re.search(r"torch ([\d.]+): (?:no edge|cos takes)", said)[1]
    if kept := patterns.recorded().get(version, {}).get("rows"):
        assert kept[patterns.ORDERED][0] == ("order not fixed" if racing else "order fixed")
    repaired = run.text("repair")
    assert f": {racing} of {racing + free} orders race" in repaired
    assert "the same with the edges of the exercise: 0" in repaired
    assert re.search(r"captured with torch 2\.15\S*, \S+: 0$", repaired, re.M)
    assert re.search(r"\[captured (here|with torch [\d.]+, \S+)\]", bare)
    assert "[captured with torch 2.15" in repaired


def test_a_graph_labels_its_operators_and_switches_no_stream(run):
    text = run.text("cell-05-3baf2ac8")
    assert re.findall(r"Annotation: \{'stream': 2\} (.*)", text) == ["ready.wait()", "b = torch.cos(a)"]
    assert "set_stream" not in text


def test_the_solutions_pass_and_the_pieces_have_the_races_that_the_exercise_asks_for(run):
    said = run.text("code-sol")
    assert all("passed: " in run.text(cell) for cell in ("tie-sol", "code-sol", "cell-56-cb586842"))
    first = dict(re.findall(r"^([ABC])\n +\S+\n +\w+(?:\n +([\w ]+):)?", said, re.M))
    assert first == {"A": "wait too late", "B": "wait too late", "C": ""}


def test_an_event_after_a_changed_input_is_refused_and_remedy_4_writes_after_it(run):
    said = run.text("cell-24-44bd01af")
    assert "An event was recorded" in said and "  4. Record the event on a stream" in said
    order = re.search(r"remedy 4: (.*)", run.text("cell-26-698f031c"))[1]
    assert order.index("'record_event'") < order.index("'copy_'")


def test_the_cache_gives_a_function_the_code_of_the_other(run):
    rows = re.findall(r"^\d +(plain|streamed) +(\d) +(\d)(.*)", run.text("cell-34-449470a0"), re.M)
    counted = [(name, hits, misses) for name, hits, misses, _ in rows]
    assert counted == [
        ("plain", "0", "1"),
        ("streamed", "1", "0"),
        ("streamed", "0", "1"),
        ("plain", "1", "0"),
    ]
    # each runs the code of the first of its order, and a CPU has no stream
    assert [bool(error.strip()) for *_, error in rows] == [False, False, True, True]
    live = re.findall(r"(?:cached, then .*) (the other's code|its own code) *$", run.text("table"), re.M)
    assert set(live) == {"the other's code"}
