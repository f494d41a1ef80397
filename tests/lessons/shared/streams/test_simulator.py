"""The simulator against the rules R1-R7, each by a program whose times can be worked out by hand."""

from __future__ import annotations

import random
import time

import pytest

from labkit.lessons.shared.streams import Deadlock, Program, StreamError, simulate


def program(*streams: str) -> Program:
    return Program("test", streams=streams)


def starts(found, rank: int = 0) -> dict[str, tuple[float, float]]:
    rows = found.spans[(found.spans["rank"] == rank) & (found.spans["lane"] != "host")]
    return {row.name: (row.start, row.end) for row in rows.itertuples()}


def test_a_launch_does_not_wait_for_the_kernel_before_it_on_another_stream():
    p = program("side")
    p.kernel("a", 4)
    p.kernel("b", 3, on="side")
    assert starts(simulate(p)) == {"a": (0, 4), "b": (0, 3)}


def test_r1_a_kernel_starts_no_earlier_than_it_was_issued():
    p = program("side")
    p.kernel("a", 1)
    p.host(5)
    p.kernel("b", 1, on="side")
    assert starts(simulate(p, launch=0.5)) == {"a": (0.5, 1.5), "b": (6, 7)}


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


def test_r4_a_wait_for_what_was_never_recorded_is_nothing_and_said():
    p = program("side")
    p.kernel("a", 2)
    p.wait("e", "side")
    p.record("e")
    p.kernel("b", 1, on="side")
    found = simulate(p)
    assert starts(found)["b"] == (0, 1)
    assert found.notes == ("op 2, wait('e', 'side') does nothing: 'e' was not recorded before",)


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
    assert list(found.path["name"]) == ["a", "b"] and found.path.iloc[1]["because"] == "a synchronize"


def test_r6_an_engine_takes_one_after_another_and_orders_nothing():
    p = program("one", "two")
    p.copy("a", 3, on="one", writes="x")
    p.copy("b", 3, on="two", writes="x")
    found = simulate(p)
    assert starts(found) == {"a": (0, 3), "b": (3, 6)}
    assert [race.cause for race in found.races] == ["missing wait"]


def test_r7_freed_memory_is_given_out_again_at_once():
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


def test_r7_record_stream_keeps_the_memory_until_the_stream_is_done():
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


def test_r7_the_other_way_is_an_event_that_the_owner_waits_for():
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


# --- several ranks ---


def test_a_collective_starts_when_the_last_rank_has_come():
    both = [program("comm"), program("comm")]
    both[1].host(5, "late")
    for p in both:
        p.collective("sum", 2, on="comm")
        p.kernel("mm", 4)
    found = simulate(both)
    sums = found.spans[found.spans["name"] == "sum"].set_index("rank")
    assert list(sums["start"]) == [0, 5] and list(sums["work"]) == [5, 5] and list(sums["end"]) == [7, 7]
    assert found.communication(0) == 7 and found.exposed(0) == 3 and found.hidden(0) == 4 / 7
    assert list(found.path["name"]) == ["late", "mm"]


def test_the_critical_path_goes_through_the_peer():
    both = [program(), program()]
    both[1].kernel("slow", 9)
    for p in both:
        p.collective("sum", 2)
    both[0].kernel("use", 3)
    assert [(r.rank, r.name) for r in simulate(both).path.itertuples()] == [
        (1, "slow"),
        (1, "sum"),
        (0, "use"),
    ]


def test_ranks_count_in_one_unit():
    with pytest.raises(StreamError, match="same unit: ms, units"):
        simulate([Program("a"), Program("b", unit="ms")])


# --- what cannot be ---


def crossed_collectives():
    both = [program("comm"), program("comm")]
    for p, order in zip(both, (("a", "b"), ("b", "a")), strict=True):
        for name in order:
            p.collective(name, 1, on="comm")
    return both


def alone():
    both = [program(), program()]
    both[0].collective("sum", 1)
    return both


def one_more():
    both = [program(), program()]
    for p in both:
        p.collective("sum", 1)
    both[1].collective("sum", 1)
    both[1].synchronize()
    return both


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (crossed_collectives, ["rank 0's op 1, collective 'a'", "rank 1's op 1, collective 'b'"]),
        (alone, ["rank 0's op 1, collective 'sum'", "'sum' on rank 1"]),
        (
            one_more,
            ["rank 1's op 2, collective 'sum'", "'sum' on rank 0", "the host of rank 1 stands at op 3"],
        ),
    ],
)
def test_a_deadlock_names_who_waits_for_whom(make, words):
    with pytest.raises(Deadlock) as caught:
        simulate(make())
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("launch", [-1, float("nan"), "fast"])
def test_a_launch_costs_a_number(launch):
    with pytest.raises(StreamError, match="launch must be a number"):
        simulate(program(), launch=launch)


def test_only_programs_are_simulated():
    for wrong in ([], {}, [1], [program(), None]):
        with pytest.raises(StreamError, match="takes a Program"):
            simulate(wrong)


def test_nothing_takes_no_time():
    found = simulate(program())
    assert found.makespan == 0 and found.path.empty and found.races == ()


# --- numbers of a timeline ---


def test_the_critical_path():
    p = program("side")
    p.kernel("a", 4)
    p.record("e")
    p.wait("e", "side")
    p.kernel("b", 3, on="side")
    p.kernel("c", 1)
    found = simulate(p)
    assert found.makespan == 7
    path = found.path
    assert list(path["name"]) == ["a", "b"] and list(path["because"]) == ["the start", "an event"]


def test_many_launches_in_the_critical_path_are_one():
    p = program()
    for i in range(5):
        p.kernel(f"k{i}", 0.1)
    path = simulate(p, launch=1).path
    assert list(path["name"]) == ["launch", "k4"] and path.iloc[0]["end"] == 5


def many(seed: int, length: int) -> Program:
    draw = random.Random(seed)
    p = program(*"abcd")
    for i in range(length):
        kind, stream = draw.random(), draw.choice(p.streams)
        if kind < 0.5:
            reads, writes = (f"b{draw.randrange(50)}",), (f"b{draw.randrange(50)}",)
            p.kernel(f"k{i}", draw.random(), on=stream, reads=reads, writes=writes)
        elif kind < 0.75:
            p.record(f"e{draw.randrange(20)}", stream)
        else:
            p.wait(f"e{draw.randrange(20)}", stream)
    return p


def test_ten_thousand_ops_are_simulated_before_anyone_looks_at_the_clock():
    p = many(1, 10_000)
    simulate(many(2, 10))  # pandas is imported once
    begun = time.perf_counter()
    found = simulate(p)
    assert time.perf_counter() - begun < 30  # benchmarks/streams.py has what it takes
    assert len(found.spans) > 4000 and found.makespan > 100
