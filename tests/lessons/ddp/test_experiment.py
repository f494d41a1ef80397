"""Training on several ranks: every route learns what one process learns, and what the compiler made of each."""

from __future__ import annotations

from functools import partial

import pytest

from labkit import Ranks, experiments
from labkit.lessons.ddp import backward, drills, pipeline
from labkit.lessons.ddp import experiment as ddp
from labkit.lessons.ddp.routes import ROUTES
from labkit.lessons.shared import training_clock
from labkit.lessons.shared.training import TOLERANCE, compare
from labkit.lessons.shared.training_model import Model
from labkit.report import Report


class Two:
    """Stands for two ranks, none of which is ever asked: what is refused is refused before."""

    world_size = 2


# --- refused before any rank runs ---


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ddp.run(Two(), ["clock", "drills"]), "one part of ddp at a time, got clock, drills"),
        (lambda: ddp.run(Two(), ["clock"], steps=3), "ddp/clock takes no steps"),
        (lambda: compare(Two(), None, {}), "nothing to compare: give at least one route"),
        (lambda: compare(Two(), None, ROUTES, steps=0), "steps must be a whole number above 0, got 0"),
        (lambda: training_clock.clock(Two(), None, {}), "nothing to run: give at least one route"),
        (lambda: backward.run(Two(), rounds=1), "rounds must be a whole number of at least 2, got 1"),
        (lambda: pipeline.run(Two(), [0]), "microbatches must be a whole number above 0, got 0"),
        (lambda: drills.run(Two(), ["flood"]), "unknown drill 'flood': there is unused, "),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_parts_are_experiments_of_their_own():
    assert experiments.get("ddp/drills").question == f"ddp: {ddp.ABOUT.parts['drills']}"


# --- every route against one process ---


@pytest.fixture(scope="module")
def report(ranks) -> Report:
    return ddp.run(ranks, steps=2)


@pytest.mark.slow
def test_every_mode_has_the_loss_and_the_gradients_of_one_process(report):
    table = report.frame.set_index("route")
    assert list(table.index) == list(ROUTES)
    assert table["equal"].all(), report.notes
    assert (table["gradients apart"] <= TOLERANCE).all() and (table["ranks alike"]).all()
    assert ddp.passed(report)
    first = report.tables["losses"].groupby("route")["one process"].first()
    assert first.nunique() == 1 and first.iloc[0] > 1


@pytest.mark.slow
def test_the_compiler_holds_what_each_mode_lets_it_hold(report):
    table = report.frame.set_index("route")
    graphs = table[["forward graphs", "backward graphs", "breaks", "given up"]].apply(tuple, axis=1).to_dict()
    assert graphs["DDP, eager"] == (0, 0, 0, 0)
    assert graphs["DDP, no_optimization"][:2] == (1, 1) and graphs["DDP, no_optimization"][2] > 0
    assert graphs["DDP, python_reducer"] == graphs["DDP, python_reducer, compiled autograd"] == (1, 1, 0, 0)
    # a message for each of six weights; one bucket
    assert (table.loc["DDP, python_reducer", "collectives"], table.loc["DDP, eager", "collectives"]) == (6, 1)


# --- on the clock ---


@pytest.mark.slow
def test_a_cut_graph_starts_its_first_bucket_in_the_middle_of_backward_and_a_whole_one_behind_it(ranks):
    modes = {name: ROUTES[name] for name in ("DDP, ddp_optimizer", "DDP, no_optimization")}
    clock = training_clock.clock(ranks, partial(Model, ddp.LARGE), modes, batch=32)
    modes = clock.frame.set_index("route")
    cut, whole = modes.loc["DDP, ddp_optimizer"], modes.loc["DDP, no_optimization"]
    assert cut["backward graphs"] > 1 == whole["backward graphs"]
    # an order of calls on one thread, not a time: products are left after the first all-reduce, or none are
    assert cut["breaks"] == whole["breaks"] == 3, (
        "also behind a route that used the Python reducer in this process"
    )
    assert cut["first starts at"] < 1 <= whole["first starts at"] and whole["hidden"] == 0
    lines = training_clock.timelines(clock)
    assert lines["DDP, no_optimization"].ranks == [0, 1] and {"forward", "backward"} <= set(
        lines["DDP, no_optimization"].spans["name"]
    )


# --- captured backward passes ---


@pytest.mark.slow
def test_a_hook_that_cannot_be_traced_cuts_a_captured_backward(ranks):
    found = backward.run(ranks, ["none", "tensor hook that prints"], rounds=2)
    rows = found.tables["hooks"].set_index(["hook", "backward by"])
    assert rows["right"].all()
    captured = rows.xs(backward.CAPTURED, level="backward by")
    assert captured.loc["none", ["backward graphs", "breaks"]].tolist() == [1, 0]
    assert captured.loc["tensor hook that prints", "backward graphs"] > 1
    assert rows.xs(backward.AOT, level="backward by")["backward graphs"].tolist() == [1, 1]
    changes = found.tables["changes"].set_index("change")["backward graphs compiled"]
    assert (
        changes["the same again"] == 0
        and changes["gradients not set to None"] == changes["a frozen weight"] == 1
    )


def _two_breaks():
    import torch
    from torch import nn

    @torch.compiler.disable
    def hidden(x):
        return x

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return hidden(hidden(self.a(x).relu()).sin() + self.b(x)).cos()

    return backward.count(Broken(), torch.ones(2, 4), torch.zeros(2, dtype=torch.long))


@pytest.mark.slow
def test_two_breaks_are_three_backward_graphs_or_one(ranks):
    counted = ranks.run(_two_breaks, ranks=0)[0]
    assert counted == {"forward": 3, "backward by AOTAutograd": 3, "backward by compiled autograd": 1}


# --- a pipeline ---


@pytest.mark.slow
def test_a_pipeline_has_the_gradients_of_one_process(ranks):
    found = pipeline.run(ranks, [1, 4], width=32, hidden=64, batch=32, rounds=2)
    assert (found.frame["gradients apart"] <= TOLERANCE).all() and (found.frame["loss apart"] < 1e-5).all()
    assert set(pipeline.timelines(found)) == {"1 microbatch", "4 microbatches"}
    assert found.frame["formula"].tolist() == [0.5, 0.2]


# --- drills ---


@pytest.mark.slow
def test_every_drill_comes_to_an_end_and_its_remedy_makes_it_right():
    with Ranks(2, device="cpu", backend="gloo", quiet=True, live=False) as two:
        found = drills.run(two, ["unused", "smaller batch", "fewer batches", "hook"])
    ended = found.frame.set_index(["drill", "remedy"])["ended"]
    assert ended[[remedy != "-" for _, remedy in ended.index]].eq("right").all()
    assert ended["unused", "-"] == ended["hook", "-"] == "raises"
    assert ended["smaller batch", "-"] == "silent and wrong"
    assert ended["fewer batches", "-"] == "waits, and is ended"
    limits = found.frame.set_index(["drill", "remedy"])["stall_s"]
    assert limits["fewer batches", "-"] == drills.STALL_S and limits["hook", "-"] == drills.PATIENT_S
    said = found.frame.set_index(["drill", "remedy"])["said"]
    assert "rank 1: FloatingPointError: the gradient of blocks.0.up is not finite" in said["hook", "-"]
    assert "Expected to have finished reduction" in said["unused", "-"]
