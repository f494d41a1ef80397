"""DDP under the compiler: every route learns what one process learns, and what the compiler made of each."""

from __future__ import annotations

import math
from functools import partial

import pytest

from course.ddp import drills, training_clock
from course.ddp import experiment as ddp
from course.ddp.training_clock import clock, timelines
from course.shared.training import compare
from labkit import Ranks, experiments, lessons

program = lessons.program("ddp")


class Two:
    """Stands for two ranks, none of which is ever asked: what is refused is refused before."""

    world_size = 2


class One(Two):
    world_size = 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ddp.run(Two(), ["eager", "drills"]), "one part of ddp at a time, got eager, drills"),
        (lambda: ddp.run(Two(), ["eager"], steps=3), "ddp/eager takes no steps"),
        (lambda: ddp.run(Two(), program={}), "the program has no 'Model': run the cell that defines it"),
        (lambda: compare(Two(), None, {}), "nothing to compare: give at least one route"),
        (
            lambda: compare(Two(), None, program.ROUTES, steps=0),
            "steps must be a whole number above 0, got 0",
        ),
        (lambda: clock(Two(), None, {}), "nothing to run: give at least one route"),
        (lambda: clock(Two(), None, program.EAGER, batch=0), "batch must be a whole number above 0, got 0"),
        (lambda: clock(Two(), None, program.EAGER, rounds=1), "rounds must be a whole number of at least 2"),
        (lambda: drills.run(Two(), {}, stall=1), "nothing to play: give at least one drill"),
        (lambda: drills.run(One(), program.DRILLS, stall=1), "a drill needs at least 2 ranks"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_parts_are_experiments_of_their_own():
    assert experiments.get("ddp/drills").question == f"ddp: {ddp.ABOUT.parts['drills']}"


@pytest.mark.slow
def test_every_route_learns_what_one_process_learns_and_the_compiler_holds_what_it_is_let(ranks):
    report = ddp.run(ranks, steps=2)
    table = report.frame.set_index("route")
    assert list(table.index) == list(program.ROUTES)
    assert table["equal"].all() and table["ranks alike"].all() and ddp.passed(report), report.notes
    graphs = table[["forward graphs", "backward graphs", "breaks"]].apply(tuple, axis=1).to_dict()
    assert graphs["DDP(m)"] == (0, 0, 0)
    assert graphs["DDP(compile(m))"] == (1, 1, 0)
    assert graphs["compile(DDP(m)), no_optimization"][:2] == (1, 1)
    assert graphs["compile(DDP(m)), no_optimization"][2] > 0
    assert graphs["compile(DDP(m)), compiled autograd"] == (1, 1, 0)
    # a message for each of six weights; one bucket
    sent = table["collectives"]
    assert (sent["compile(DDP(m)), python_reducer"], sent["DDP(m)"]) == (6, 1)


def _unreduced(model, backend):
    return program.Route(model)


@pytest.mark.slow
def test_a_route_that_learns_something_else_is_found(ranks):
    wrong = compare(ranks, program.seeded, {"no communication": _unreduced}, steps=1)
    assert not wrong.frame["equal"].any() and not ddp.passed(wrong)
    assert (
        wrong.notes[0] == "DIFFERENT from one process: no communication" and "upper bound" in wrong.notes[1]
    )


@pytest.mark.slow
def test_a_cut_graph_starts_its_first_bucket_in_the_middle_of_backward_and_a_whole_one_behind_it(ranks):
    chosen = {
        name: program.COMPILED[name] for name in ("compiled autograd", "ddp_optimizer", "no_optimization")
    }
    report = clock(ranks, partial(program.seeded, **program.LARGE), chosen, batch=32, rounds=2)
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


@pytest.mark.slow
def test_every_drill_comes_to_an_end_and_its_remedy_makes_it_right():
    with Ranks(2, device="cpu", backend="gloo", quiet=True, live=False) as two:
        found = drills.run(two, program.DRILLS, stall=5)
    ended = found.frame.set_index("drill")["ended"]
    assert ended[[name.startswith("...") for name in ended.index]].eq("right").all()
    assert ended["a weight that is not used"] == ended["a hook raises on rank 1"] == "raises"
    assert ended["a smaller batch on rank 1"] == "silent and wrong"
    assert ended["fewer batches on rank 1"] == "waits, and is ended"
    said = found.frame.set_index("drill")["said"]
    assert "rank 1: FloatingPointError: the gradient of blocks.0.up is" in said["a hook raises on rank 1"]
    assert said["the same under compiled autograd"] == said["a hook raises on rank 1"]
    assert "Expected to have finished reduction" in said["a weight that is not used"]
