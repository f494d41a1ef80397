"""The exclusive partition: no overlap, no hole, and the kind that each piece deserves."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from oddrank.record.profile import RawEvent
from oddrank.record.segments import KINDS, partition
from oddrank.record.timeline import tidy

REGION, LOOKUP, CALL = "Torch-Compiled Region: ", "TorchDynamo Cache Lookup", "## Call CompiledFxGraph x ##"
NAMES = (REGION + "0/0", REGION + "1/0", LOOKUP, CALL, "Pregraph bytecode", "aten::mm", "c10d::allreduce_")
NAMES += ("_c10d_functional::wait_tensor", "dynamo", "my annotation", "shm:all_reduce")


def cut(*ranges: tuple[str, int, int], broken=(), empty=(), end: int = 1000) -> list[tuple[str, int, int]]:
    raw = [RawEvent(name, start, stop, 1) for name, start, stop in (("oddrank.record", 0, end), *ranges)]
    return [(s.kind, s.start, s.end) for s in partition(tidy(raw), broken, empty)]


def test_a_region_that_does_not_break_is_entry_compute_exit():
    assert cut((REGION + "0/0", 100, 900), ("Pregraph bytecode", 150, 200), (CALL, 300, 700)) == [
        ("python", 0, 100),
        ("entry", 100, 300),
        ("compute", 300, 700),
        ("entry", 700, 900),
        ("python", 900, 1000),
    ]


def test_after_the_graph_of_a_broken_region_the_time_is_eager_python():
    ranges = [
        (REGION + "0/0", 100, 900),
        (CALL, 200, 300),
        ("c10d::allreduce_", 400, 500),
        (LOOKUP, 600, 640),
    ]
    ranges += [(REGION + "1/0", 642, 880), (CALL, 700, 800)]
    assert cut(*ranges, broken={"0/0"}) == [
        ("python", 0, 100),
        ("entry", 100, 200),
        ("compute", 200, 300),
        ("python", 300, 400),
        ("collective", 400, 500),
        ("python", 500, 600),
        ("lookup", 600, 640),
        ("entry", 640, 700),  # from the lookup's hit to the graph of what it found
        ("compute", 700, 800),
        ("entry", 800, 880),
        ("entry", 880, 900),
        ("python", 900, 1000),
    ]


def test_the_rest_of_a_frame_that_was_not_resumed_is_python():
    ranges = [(REGION + "0/0", 100, 900), (CALL, 200, 300), ("aten::mm", 400, 500)]
    assert ("python", 500, 900) in cut(*ranges, broken={"0/0"})
    assert ("entry", 500, 900) in cut(*ranges)


def test_a_region_that_broke_before_any_graph_has_no_entry():
    assert cut((REGION + "0/0", 100, 900), broken={"0/0"}, empty={"0/0"}) == [
        ("python", 0, 100),
        ("python", 100, 900),
        ("python", 900, 1000),
    ]


def test_collectives_and_waits_are_cut_out_of_compiled_code_and_operators():
    found = cut((CALL, 100, 500), ("_c10d_functional::all_reduce_", 200, 250), ("aten::add", 600, 900))
    assert found[1:4] == [("compute", 100, 200), ("collective", 200, 250), ("compute", 250, 500)]


def test_an_operator_that_waits_is_dispatched_in_python_and_only_its_kernel_computes():
    ranges = [("_c10d_functional::_wrap_tensor_autograd", 100, 200), ("aten::add", 300, 900)]
    ranges += [("_c10d_functional::wait_tensor", 400, 450), ("aten::add", 500, 600), ("aten::to", 510, 520)]
    assert cut(*ranges)[1:7] == [
        ("dispatch", 100, 200),
        ("python", 200, 300),
        ("dispatch", 300, 400),
        ("collective", 400, 450),
        ("dispatch", 450, 500),
        ("compute", 500, 600),
    ]
    assert ("compute", 300, 900) in cut(("aten::add", 300, 900), ("aten::add", 500, 600))  # without a wait


def test_what_another_thread_does_takes_no_time_of_the_main_thread():
    raw = [RawEvent("oddrank.record", 0, 100, 1), RawEvent("aten::mm", 10, 90, 2)]
    assert [(s.kind, s.start, s.end) for s in partition(tidy(raw))] == [("python", 0, 100)]


@st.composite
def nested(draw) -> list[RawEvent]:
    """A main thread's ranges: properly nested, as a stack of calls is, in any order."""
    found = [RawEvent("oddrank.record", 0, 10_000, 1)]

    def fill(start: int, end: int, depth: int) -> None:
        at = start
        while depth and end - at > 4 and draw(st.booleans()):
            a = draw(st.integers(at, end - 2))
            b = draw(st.integers(a + 1, end))
            found.append(RawEvent(draw(st.sampled_from(NAMES)), a, b, 1))
            fill(a, b, depth - 1)
            at = b

    if draw(st.booleans()):
        for start in (100, 4_000):
            found.append(RawEvent("oddrank.forward", start, start + 3_000, 1))
            fill(start, start + 3_000, 4)
    else:
        fill(0, 10_000, 4)
    return draw(st.permutations(found))


@settings(max_examples=300, deadline=None)
@given(nested(), st.sets(st.sampled_from(["0/0", "1/0"])), st.sets(st.sampled_from(["0/0", "1/0"])))
def test_segments_cover_each_forward_exactly_once(raw, broken, empty):
    events = tidy(raw)
    pieces = partition(events, broken, empty)
    forwards = {e.forward: (e.start, e.end) for e in events if e.kind == "forward"}
    assert {p.forward for p in pieces} == set(forwards)
    for number, (start, end) in forwards.items():
        mine = [p for p in pieces if p.forward == number]
        assert mine[0].start == start and mine[-1].end == end
        assert all(a.end == b.start for a, b in pairwise(mine))
        assert all(p.end > p.start and p.kind in KINDS for p in mine)
