"""DDP under the compiler: each route learns what one process learns, what was compiled of it, and the drills."""

from __future__ import annotations

import pytest

from course.ddp import drills
from course.shared.training import compare
from labkit import Ranks, lessons

program = lessons.program("ddp")


class Two:
    """Stands for two ranks, none of which is ever asked: what is refused is refused before."""

    world_size = 2


class One(Two):
    world_size = 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: compare(Two(), None, {}, steps=1), "nothing to compare: give at least one route"),
        (
            lambda: compare(Two(), None, program.ROUTES, steps=0),
            "steps must be a whole number above 0, got 0",
        ),
        (lambda: drills.run(Two(), {}, stall=1), "nothing to play: give at least one drill"),
        (lambda: drills.run(One(), program.DRILLS, stall=1), "a drill needs at least 2 ranks"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.slow
def test_every_route_learns_what_one_process_learns_and_the_compiler_holds_what_it_is_let(ranks):
    report = compare(ranks, program.seeded, program.ROUTES, steps=2)
    table = report.frame.set_index("route")
    assert list(table.index) == list(program.ROUTES)
    assert table["equal"].all() and table["ranks alike"].all(), report.notes
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
    assert not wrong.frame["equal"].any()
    assert (
        wrong.notes[0] == "DIFFERENT from one process: no communication" and "upper bound" in wrong.notes[1]
    )


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
