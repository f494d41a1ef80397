"""The simulator against the rules R1-R6, each by a program whose times can be worked out by hand."""

from __future__ import annotations

import pytest

from course.shared.streams import Program, StreamError, simulate
from course.streams.plain import plain, races_of


def program(*streams: str) -> Program:
    return Program("test", streams=streams)


def starts(found) -> dict[str, tuple[float, float]]:
    rows = found.spans[found.spans["lane"] != "host"]
    return {row.name: (row.start, row.end) for row in rows.itertuples()}


def test_r1_a_kernel_starts_no_earlier_than_it_was_issued():
    p = program("side")
    p.kernel("a", 1)
    p.kernel("b", 1, on="side")
    assert starts(simulate(p, launch=0.5)) == {"a": (0.5, 1.5), "b": (1, 2)}


def test_r2_a_stream_is_a_queue():
    p = program()
    for name in "abc":
        p.kernel(name, 2)
    assert starts(simulate(p)) == {"a": (0, 2), "b": (2, 4), "c": (4, 6)}


def test_r3_a_record_again_changes_later_waits_only():
    p = program("side", "third")
    p.kernel("a", 2)
    p.record("e")
    p.wait("e", "side")
    p.kernel("b", 2)
    p.record("e")
    p.wait("e", "third")
    p.kernel("early", 1, on="side")
    p.kernel("late", 1, on="third")
    found = starts(simulate(p))
    assert found["early"] == (2, 3) and found["late"] == (4, 5)


def test_r4_a_wait_for_what_was_not_recorded_is_nothing():
    p = program("side")
    p.kernel("a", 2)
    p.wait("e", "side")
    p.record("e")
    p.kernel("b", 1, on="side")
    assert starts(simulate(p))["b"] == (0, 1)


def test_r4_a_wait_never_holds_up_the_host():
    p = program("side")
    p.kernel("a", 4)
    p.record("e")
    p.wait("e", "side")
    p.kernel("b", 1, on="side")
    p.kernel("c", 1, on="side")
    found = simulate(p)
    assert starts(found)["b"] == (4, 5)
    assert found.spans[found.spans["lane"] == "host"].empty


@pytest.mark.parametrize("how", ["stream", "event", "device"])
def test_r5_a_synchronize_stops_the_host(how):
    p = program("side")
    p.kernel("a", 4, on="side")
    p.record("e", "side")
    {
        "stream": lambda: p.synchronize("side"),
        "event": lambda: p.synchronize(event="e"),
        "device": lambda: p.synchronize(),
    }[how]()
    p.kernel("b", 1)
    found = simulate(p)
    assert starts(found)["b"] == (4, 5)
    host = found.spans[found.spans["lane"] == "host"].iloc[0]
    assert (host["kind"], host["start"], host["end"]) == ("synchronize", 0, 4)


def test_r6_freed_memory_is_given_out_again_at_once():
    p = program("side")
    p.alloc("x", 4)
    p.kernel("make", 1, writes="x")
    p.record("made")
    p.wait("made", "side")
    p.kernel("use", 5, on="side", reads="x")
    p.free("x")
    p.alloc("z", 4)
    p.kernel("overwrite", 1, writes="z")
    found = simulate(p)
    (race,) = found.races
    assert (race.cause, race.buffer, race.before) == ("cross-stream free", "z", "x")
    assert "op 6, free('x')" in race.text
    assert found.peak == 4


def freed_after(p: Program) -> None:
    p.alloc("x")
    p.kernel("make", 1, writes="x")
    p.record("made")
    p.wait("made", "side")
    p.kernel("use", 5, on="side", reads="x")


def test_r6_record_stream_keeps_the_memory_until_the_stream_is_done():
    p = program("side")
    freed_after(p)
    p.record_stream("x", "side")
    p.free("x")
    p.alloc("z")
    p.kernel("other", 1, writes="z")
    p.synchronize()
    p.alloc("again")
    p.kernel("reuses", 1, writes="again")
    assert simulate(p).races == ()


def test_r6_record_stream_of_the_owner_does_nothing():
    """`recordStream` of torch's caching allocator returns where the stream is that of the block."""
    for told, races in (("default", 1), ("side", 0)):
        p = program("side")
        freed_after(p)
        p.record_stream("x", told)
        p.free("x")
        p.alloc("z")
        p.kernel("overwrite", 1, writes="z")
        assert [race.cause for race in simulate(p).races] == ["cross-stream free"] * races
        assert len(races_of(plain(p))) == races


def test_r6_the_other_way_is_an_event_that_the_owner_waits_for():
    p = program("side")
    freed_after(p)
    p.record("used", "side")
    p.wait("used")
    p.free("x")
    p.alloc("z")
    p.kernel("overwrite", 1, writes="z")
    found = simulate(p)
    assert found.races == () and starts(found)["overwrite"] == (6, 7)


def test_a_side_stream_does_not_wait_for_the_default_stream_nor_that_for_it():
    p = program("side")
    p.kernel("a", 2, on="side", writes="x")
    p.kernel("b", 2, reads="x")
    p.kernel("c", 2, on="side")
    assert starts(simulate(p)) == {"a": (0, 2), "b": (0, 2), "c": (2, 4)}


# --- what cannot be ---


def test_only_programs_are_simulated_and_a_launch_costs_a_number():
    for wrong in (None, [program()], len):
        with pytest.raises(StreamError, match="takes a Program"):
            simulate(wrong)
    for launch in (-1, float("nan"), "fast"):
        with pytest.raises(StreamError, match="launch must be a number"):
            simulate(program(), launch=launch)


def test_nothing_takes_no_time():
    found = simulate(program())
    assert found.makespan == 0 and found.races == ()
