"""The strip of a step: where breaks and differences stand, what its text says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oddrank.strip.forwards import take_forward
from oddrank.strip.words import finding, strip_text


def took(run, rank):
    mine = run.segments[run.segments["rank"] == rank]
    return mine["end"].max() - mine["start"].min()


def keep(tables, name, wanted):
    rows = getattr(tables, name)
    rows[:] = [one for one in rows if wanted(one)]


def test_time_starts_on_the_earliest_rank_and_is_shared(broken):
    run = take_forward(broken)
    starts = run.segments.groupby("rank")["start"].min()
    assert starts[0] == 0 and starts[1] == pytest.approx(0.030)
    assert run.duration == pytest.approx(1.03)
    assert took(run, 1) == pytest.approx(1.0)


def test_breaks_stand_where_the_compiled_part_ends(with_transfers):
    run = take_forward(with_transfers)
    mine = run.marks[run.marks["rank"] == 0].sort_values("at")
    assert list(mine["at"]) == pytest.approx([0.150, 0.360, 0.650, 0.860])
    assert list(mine["number"]) == [1, 2, 1, 2]
    assert [(r.number, r.times, r.place) for r in run.reasons] == [
        (1, "×2", "In [3]:8 (forward)"),
        (2, "×2", "In [3]:12 (forward)"),
        (0, "given up", "In [3]:20 (Model.forward)"),
    ]


def test_a_frame_that_a_call_gives_up_is_named_and_not_the_call(with_transfers):
    # the line of the call is in another function: the frame's own line is said
    for mark in with_transfers.marks:
        if mark.kind == "gave-up":
            mark.line, mark.func = 8, "forward"
    assert take_forward(with_transfers).reasons[-1].place == "In [3]:20 (Model.forward)"


def test_a_region_without_a_kernel_breaks_where_it_starts(with_transfers):
    keep(with_transfers, "ranges", lambda one: (one.kind, one.compile) != ("compiled", "2/0"))
    run = take_forward(with_transfers)
    mine = run.marks[run.marks["rank"] == 0]
    assert list(mine["at"]) == pytest.approx([0.150, 0.270, 0.650, 0.770])


def test_nested_ranges_of_one_collective_count_once(with_transfers):
    assert list(take_forward(with_transfers).counts["collectives"]) == [4, 4]


def test_transfers_are_cut_where_their_own_ranks_step_begins_and_ends(step):
    run = take_forward(step)
    assert took(run, 0) < run.duration
    spans = run.transfers[["start", "end"]].to_numpy().tolist()
    ends = took(run, 0)
    assert sum(spans, []) == pytest.approx([0, 0.1, 0.2, 0.3, ends - 0.1, ends])


def test_the_typical_forward_is_the_one_of_median_length(broken):
    zero = min(one.start_us for one in broken.segments)
    once = list(broken.segments)
    broken.segments.clear()
    for number, stretch in enumerate((3.0, 1.0, 2.0)):
        for one in once:
            start, end = (zero + (at - zero) * stretch for at in (one.start_us, one.end_us))
            broken.segments.append(replace(one, forward=number, start_us=start, end_us=end))
    assert take_forward(broken, "typical").duration == pytest.approx(2.06)


def test_ranks_that_broke_differently_are_counted_apart(broken):
    keep(broken, "marks", lambda one: one.rank == 0 or one.kind != "break")
    assert [one.times for one in take_forward(broken).reasons if one.number] == ["rank 0 ×2, rank 1 ×0"] * 2


def test_the_difference_has_its_place_on_every_rank(diverged, broken):
    run = take_forward(diverged)
    assert run.difference.text == "rank 0: region forward at In [3]:8 (forward); rank 1: nothing more"
    assert sorted(run.difference.spans) == [0, 1]
    assert finding(run) == "Ranks 0 and 1 part ways at step 6 of this forward"
    assert strip_text(run).endswith("rank 1: nothing more")
    assert take_forward(broken).difference is None


def test_what_was_marked_as_a_step_is_called_a_step(step, broken):
    assert finding(take_forward(step)) == "Eager: 4 collectives and no compiled region in one step"
    with pytest.raises(ValueError, match="^step 9 was not"):
        take_forward(step, 9)
    for name in ("segments", "ranges"):
        keep(step, name, lambda one: one.rank == 0 or one.kind != "collective")
    assert finding(take_forward(step)) == "Ranks 0 and 1 part ways at event 0 of this step"
    assert finding(take_forward(broken)).startswith(
        "One forward fell into 4 compiled regions at 4 graph breaks"
    )


def test_text_says_the_same_numbers(broken, whole):
    assert strip_text(take_forward(broken)).splitlines() == [
        "rank 0: 4 regions, 4 collectives, 4 breaks",
        "rank 1: 4 regions, 4 collectives, 4 breaks",
    ]
    assert strip_text(take_forward(whole, ranks=[1])) == "rank 1: 1 region, 4 collectives, no break"


def test_nothing_recorded_says_so(broken):
    broken.segments.clear()
    run = take_forward(broken)
    assert finding(run) == "Nothing was recorded"
    assert strip_text(run) == "nothing was recorded: no forward ran inside the record"


def test_what_was_not_recorded_is_refused(broken):
    with pytest.raises(ValueError, match="forward 3 was not recorded: there are 0"):
        take_forward(broken, 3)
    with pytest.raises(ValueError, match="rank 7 was not recorded: forward 0 has ranks 0, 1"):
        take_forward(broken, ranks=[0, 7])
