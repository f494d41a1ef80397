"""One training step on the clock: where all-reduces start, what runs beside them, and what counts as hidden."""

from __future__ import annotations

import math
from functools import partial

import pytest

from course.ddp import training_clock
from course.ddp.training_clock import clock, timelines
from labkit import lessons

program = lessons.program("ddp")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: clock(None, None, {}), "nothing to run: give at least one route"),
        (lambda: clock(None, None, program.EAGER, batch=0), "batch must be a whole number above 0, got 0"),
        (lambda: clock(None, None, program.EAGER, rounds=1), "rounds must be a whole number of at least 2"),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_rank_is_asked(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.slow
def test_a_cut_graph_starts_its_first_bucket_in_the_middle_of_backward_and_a_whole_one_behind_it(ranks):
    chosen = {
        name: program.COMPILED[name] for name in ("compiled autograd", "ddp_optimizer", "no_optimization")
    }
    large = partial(program.seeded, width=256, hidden=1024)
    report = clock(ranks, large, chosen, batch=32, rounds=2)
    modes = report.frame.set_index("route")
    cut, whole = modes.loc["ddp_optimizer"], modes.loc["no_optimization"]
    assert cut["backward graphs"] > 1 == whole["backward graphs"]
    assert cut["breaks"] == whole["breaks"] == 3, "also behind a route that used the Python reducer"
    # an order of calls on one thread, not a time: products are left after the first all-reduce, or none are
    assert cut["first starts at"] < 1 <= whole["first starts at"] and whole["hidden"] == 0
    lines = timelines(report)["no_optimization"]
    assert lines.ranks == [0, 1] and {"forward", "backward"} <= set(lines.spans["name"])
    assert [verdict.b for verdict in report.verdicts] == ["no_optimization"] * 2


def test_a_rank_that_entered_early_waits_and_hides_nothing():
    def bar(rank, kind, start, end):
        return {"rank": rank, "lane": "main", "name": kind, "kind": kind, "start": start, "end": end}

    def hidden(*bars):
        return training_clock._hidden(training_clock._from_the_last_entry(list(bars)))

    # rank 0's call lasts as long as rank 1 computes: nothing travels beside a matmul of either
    late = [
        bar(0, "collective", 2, 10),
        bar(0, "compute", 0, 8),
        bar(1, "compute", 0, 8),
        bar(1, "collective", 8, 10),
    ]
    assert hidden(*late) == 0
    spans = training_clock._from_the_last_entry(late)
    assert [(b["kind"], b["start"], b["end"]) for b in spans if b["rank"] == 0 and b["kind"] != "compute"] == [
        ("synchronize", 2, 8), ("collective", 8, 10)
    ]  # fmt: skip
    together = [
        bar(rank, kind, *span)
        for rank in (0, 1)
        for kind, span in (("collective", (2, 6)), ("compute", (0, 4)))
    ]
    assert hidden(*together) == 0.5
    assert math.isnan(hidden(bar(0, "compute", 0, 8), bar(1, "compute", 0, 8)))
    # without its peer's call a bar stays as it is
    alone = [bar(0, "collective", 2, 6), bar(1, "compute", 0, 4)]
    assert training_clock._from_the_last_entry(alone) == alone
