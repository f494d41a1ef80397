"""Tables of several ranks: one clock, and the first thing that they did differently."""

from __future__ import annotations

import contextlib

import pytest
from oddrank.record import Compile, Mark, Range, Tables, first_difference, merge


def made(
    rank: int, *ran: Range, origin: int = 0, digest: str = "aa", reason: str = "", clock: str = "one"
) -> Tables:
    """A forward of a rank, in which `f` has a graph and perhaps a break."""
    tables = Tables(label="gloo · cpu", clock=clock, origin_ns=origin, profiled={rank: 1})
    tables.compiles.append(
        Compile(rank, "0/0", "m.py", 1, "f", outcome="graph", broke=bool(reason), digest=digest)
    )
    tables.compiles.append(Compile(rank, "9/0", contextlib.__file__, 299, "helper", outcome="empty"))
    if reason:
        tables.marks.append(Mark(rank, "0/0", "m.py", 2, "f", "break", name=reason))
    for one in ran:
        one.rank = rank
    tables.ranges += ran
    return tables


def region(start: float, compile_: str = "0/0") -> Range:
    return Range(0, 0, "region", "Torch-Compiled Region", start, start + 1, compile=compile_)


def call(start: float, shapes: str = "", name: str = "c10d::allreduce_") -> Range:
    return Range(0, 0, "collective", name, start, start + 1, shapes=shapes)


def difference(*parts: Tables):
    return first_difference(merge(parts))


def test_ranks_that_do_the_same_do_not_differ_however_it_is_spelled():
    assert difference(*(made(rank, region(1 + rank), call(5)) for rank in range(3))) is None
    assert difference(made(0, call(5)), made(1, call(5, name="_c10d_functional::all_reduce_"))) is None
    # a message is between two ranks: others have no part in it
    assert difference(made(0, call(5, name="c10d::send")), made(1)) is None


def test_a_missing_collective_is_the_first_difference():
    found = difference(made(0, call(5), call(7)), made(1, call(5)))
    assert (found.forward, found.index, found.steps[1]) == (0, 1, None)
    assert found.steps[0].start_us == 7 and found.steps[0].kind == "collective"
    assert str(found) == "forward 0, step 1: rank 0: collective all_reduce; rank 1: nothing more"


def test_the_odd_rank_out_is_named():
    found = difference(*(made(rank, call(5, "2x3" if rank != 1 else "3x2")) for rank in range(4)))
    assert found.odd == [1]
    assert str(found) == (
        "forward 0, step 0: rank 0 and 2 and 3: collective all_reduce of 2x3; rank 1: collective all_reduce of 3x2"
    )


def test_another_graph_under_the_same_name_is_a_difference():
    found = difference(made(0, region(1)), made(1, region(1), digest="bb"))
    assert found.steps[0].kind == "region" and found.odd == [1]
    assert "another graph or other shapes on rank 1" in str(found)


def test_a_break_on_one_rank_is_a_difference():
    found = difference(made(0, region(1), call(5)), made(1, region(1), call(5), reason="print"))
    assert found.index == 1
    assert (found.steps[0].kind, str(found.steps[1])) == ("collective", "break print at m.py:2 (f)")


def test_a_graph_that_differs_because_one_rank_breaks_in_it_says_so():
    ranks = [made(0, region(1), digest="bb", reason="print"), made(1, region(1))]
    assert str(difference(*ranks)).endswith("on rank 1; it breaks on rank 0 only: print at m.py:2 (f)")


def test_a_step_in_a_library_is_told_with_the_programs_step_that_follows():
    told = str(difference(made(0, region(1, "9/0"), region(3)), made(1, region(3))))
    assert "region helper at python/contextlib.py:299 (helper), then region f at m.py:1 (f)" in told


@pytest.mark.parametrize(("clock", "starts"), [("one", [3005.0, 5.0]), ("two", [5.0, 5.0])])
def test_ranks_of_one_machine_are_put_on_one_clock(clock, starts):
    both = merge([made(0, call(5), origin=5_000_000), made(1, call(5), origin=2_000_000, clock=clock)])
    assert [one.start_us for one in both.ranges] == starts
    assert both.ranks == [0, 1] and both.label == "gloo · cpu" and bool(both.clock) == (clock == "one")


def test_merging_refuses_what_is_not_one_of_each_rank():
    with pytest.raises(ValueError, match="nothing to merge"):
        merge([])
    with pytest.raises(ValueError, match="rank 0 is in two"):
        merge([made(0), made(0)])
