"""The fragment strip: what it draws, where breaks and differences stand, what its text says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import matplotlib.collections
import pandas as pd
import pytest
from oddrank.record import Range, Segment, Tables
from oddrank.strip.forwards import COLUMNS, take_forward
from oddrank.strip.words import strip_text

from labkit.views import strip


def took(run, rank):
    mine = run.segments[run.segments["rank"] == rank]
    return mine["end"].max() - mine["start"].min()


def keep(tables, name, wanted):
    rows = getattr(tables, name)
    rows[:] = [one for one in rows if wanted(one)]


def axes(figure, name):
    return [ax for ax in figure.axes if ax.get_label() == name]


def artists(ax, gid):
    return [artist for artist in ax.get_children() if artist.get_gid() == gid]


def bars(ax, kind, rank):
    return sum(len(c.get_paths()) for c in artists(ax, f"{kind} rank {rank}"))


def words(figure):
    inside = [t.get_text() for ax in figure.axes for t in ax.texts]
    return [t.get_text() for t in figure.texts] + inside


def test_every_segment_becomes_a_bar_of_its_kind(broken):
    (ax,) = axes(strip(broken), "whole")
    for rank in (0, 1):
        mine = Counter(one.kind for one in broken.segments if one.rank == rank)
        for kind, n in mine.items():
            assert bars(ax, kind, rank) == n
    assert [t.get_text() for t in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert ax.get_xlabel() == "µs since the forward began"


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


def test_reasons_and_places_are_listed(broken):
    said = words(strip(broken))
    why = "Skip calling `torch.compiler.disable()`d function all_reduce"
    assert [one for one in said if why in one] == [
        f"{number}: ×2, In [3]:{line} (forward): {why}" for number, line in ((1, 8), (2, 12))
    ]
    assert any("given up, In [3]:20 (Model.forward): " in one for one in said)
    (ax,) = axes(strip(broken), "whole")
    assert [len(artists(ax, f"breaks rank {rank}")[0].get_paths()) for rank in (0, 1)] == [4, 4]
    assert [text.get_text() for text in ax.texts] == ["1", "2", "1", "2"] * 2


def test_a_region_without_a_kernel_breaks_where_it_starts(with_transfers):
    keep(with_transfers, "ranges", lambda one: (one.kind, one.compile) != ("compiled", "2/0"))
    run = take_forward(with_transfers)
    mine = run.marks[run.marks["rank"] == 0]
    assert list(mine["at"]) == pytest.approx([0.150, 0.270, 0.650, 0.770])


def test_ranks_that_broke_differently_are_counted_apart(broken):
    keep(broken, "marks", lambda one: one.rank == 0 or one.kind != "break")
    said = words(strip(broken))
    assert sum("rank 0 ×2, rank 1 ×0" in one for one in said) == 2


def test_nested_ranges_of_one_collective_count_once(with_transfers):
    assert list(take_forward(with_transfers).counts["collectives"]) == [4, 4]


def test_transfers_of_other_threads_get_a_lane_of_their_own(with_transfers):
    (ax,) = axes(strip(with_transfers), "whole")
    assert bars(ax, "transfer", 0) == 4
    keep(with_transfers, "ranges", lambda one: one.kind != "transfer")
    (ax,) = axes(strip(with_transfers), "whole")
    assert bars(ax, "transfer", 0) == 0


def test_the_difference_is_outlined_on_every_rank_and_said(diverged):
    figure = strip(diverged)
    (ax,) = axes(figure, "whole")
    assert len(artists(ax, "first-difference")) == 2
    said = " ".join(words(figure))
    assert "rank 0: region forward at In [3]:8 (forward); rank 1: nothing more" in said
    assert "Ranks 0 and 1 part ways at step 6" in said
    assert "first difference between ranks" in said
    assert "rank 1: nothing more" in strip_text(diverged)


def test_ranks_that_agree_get_no_outline(broken):
    figure = strip(broken)
    assert not [a for ax in figure.axes for a in artists(ax, "first-difference")]
    assert "first difference between ranks" not in words(figure)


def test_on_a_gpu_the_lanes_are_said_to_be_the_hosts(with_transfers):
    said = "Lanes are the host's: compute is launching"
    assert said not in " ".join(words(strip(with_transfers)))
    for one in with_transfers.ranges:
        one.thread = "stream 7" if one.thread == "gloo" else one.thread
    assert said in " ".join(words(strip(with_transfers)))


def test_what_was_marked_as_a_step_is_called_a_step(step, broken):
    (ax,) = axes(strip(step), "whole")
    assert ax.get_xlabel() == "ms since the step began"
    assert words(strip(step))[0] == "Eager: 4 collectives and no compiled region in one step"
    with pytest.raises(ValueError, match="^step 9 was not"):
        strip(step, forward=9)
    assert "forward" not in strip(step).summary
    for name in ("segments", "ranges"):
        keep(step, name, lambda one: one.rank == 0 or one.kind != "collective")
    assert words(strip(step))[0] == "Ranks 0 and 1 part ways at event 0 of this step"
    assert "one forward" not in strip(broken).summary and "One forward fell into" in strip(broken).summary


def test_transfers_are_cut_where_their_own_ranks_step_begins_and_ends(step):
    run = take_forward(step)
    assert took(run, 0) < run.duration
    spans = run.transfers[["start", "end"]].to_numpy().tolist()
    ends = took(run, 0)
    assert sum(spans, []) == pytest.approx([0, 0.1, 0.2, 0.3, ends - 0.1, ends])


def test_ten_thousand_segments_stay_few_artists():
    tables = Tables()
    tables.segments += (
        Segment(r, 0, "compute" if i % 2 else "collective", i, i + 1.0, "0/0", "x")
        for r in (0, 1)
        for i in range(10_000)
    )
    tables.ranges.append(Range(0, 0, "op", "aten::mm", 0.0, 1.0))
    figure = strip(tables)
    (ax,) = axes(figure, "whole")
    drawn = [c for c in ax.collections if isinstance(c, matplotlib.collections.PolyCollection)]
    assert sum(len(c.get_paths()) for c in drawn) == 20_000
    assert sum(len(ax.get_children()) for ax in figure.axes) < 150


def test_the_label_is_drawn_and_defaults_to_the_records_own(broken):
    labelled = [t.get_text() for t in strip(broken).texts if t.get_gid() == "run-label"]
    assert labelled == ["gloo · cpu"]
    labelled = [t.get_text() for t in strip(broken, label="simulated").texts if t.get_gid() == "run-label"]
    assert labelled == ["simulated"]


def test_text_says_the_same_numbers(broken, whole):
    assert strip_text(broken).splitlines() == [
        "rank 0: 4 regions, 4 collectives, 4 breaks",
        "rank 1: 4 regions, 4 collectives, 4 breaks",
    ]
    assert strip_text(whole, ranks=[1]) == ("rank 1: 1 region, 4 collectives, no break")


def test_nothing_recorded_says_so(broken):
    broken.segments.clear()
    figure = strip(broken)
    assert "Nothing was recorded" in words(figure) and figure.summary
    assert strip_text(broken) == "nothing was recorded: no forward ran inside the record"


def test_a_missing_column_is_named_with_its_table(broken):
    tables = {name: getattr(broken, name).frame() for name in COLUMNS}
    assert take_forward(tables).reasons == take_forward(broken).reasons
    for name, column in (("segments", "compile"), ("marks", "line"), ("ranges", "thread")):
        with pytest.raises(ValueError, match=f"table '{name}' has no column '{column}'"):
            strip({**tables, name: tables[name].drop(columns=column)})
    for missing in ("segments", "ranges"):
        with pytest.raises(ValueError, match=f"this dict has no table '{missing}'"):
            strip({name: table for name, table in tables.items() if name != missing})
    with pytest.raises(ValueError, match="table 'segments' must be a DataFrame, got list"):
        strip({**tables, "segments": []})


def test_what_was_not_recorded_is_refused(broken):
    with pytest.raises(ValueError, match="forward 3 was not recorded: there are 0"):
        strip(broken, forward=3)
    with pytest.raises(ValueError, match="rank 7 was not recorded: forward 0 has ranks 0, 1"):
        strip(broken, ranks=[0, 7])
    with pytest.raises(ValueError, match="several variants"):
        variants = pd.concat([broken.segments.frame().assign(variant=v) for v in "BC"])
        strip({"segments": variants, "ranges": broken.ranges.frame()})


def test_the_typical_forward_is_the_one_of_median_length(broken):
    zero = min(one.start_us for one in broken.segments)
    once = list(broken.segments)
    broken.segments.clear()
    for number, stretch in enumerate((3.0, 1.0, 2.0)):
        for one in once:
            start, end = (zero + (at - zero) * stretch for at in (one.start_us, one.end_us))
            broken.segments.append(replace(one, forward=number, start_us=start, end_us=end))
    assert take_forward(broken, "typical").duration == pytest.approx(2.06)
