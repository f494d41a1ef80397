"""Training on several ranks: every route learns what one process learns, and what the compiler made of each."""

from __future__ import annotations

import pytest

from labkit import Ranks, experiments
from labkit.lessons.ddp import backward, curves, drills, parity, passes, pipeline, steps
from labkit.lessons.ddp import experiment as training
from labkit.lessons.ddp.kinds import EVERY, ROUTES
from labkit.report import Report


class Two:
    """Stands for two ranks, none of which is ever asked: what is refused is refused before."""

    world_size = 2


# --- refused before any rank runs ---


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: training.run(Two(), ["ddp", "fsdp"]), "one part of training at a time, got ddp, fsdp"),
        (lambda: training.run(Two(), ["ddp"], steps=3), "training/ddp takes no steps"),
        (lambda: parity.run(Two(), ["DDP"]), "unknown route 'DDP': there is one process, DDP, eager"),
        (lambda: parity.run(Two(), steps=0), "steps must be a whole number above 0, got 0"),
        (lambda: steps.run(Two(), []), "nothing to run: give at least one route or size"),
        (lambda: steps.sweep(Two(), [0.25]), "cap_mb must be at least 1 .* got 0.25"),
        (lambda: steps.run(Two(), ["data x tensor parallel"]), "needs 4 ranks, and these are 2"),
        (lambda: backward.run(Two(), rounds=1), "rounds must be a whole number of at least 2, got 1"),
        (lambda: curves.run(Two(), steps=0), "steps must be a whole number above 0, got 0"),
        (lambda: passes.run(Two(), width=5), "width must be a multiple of the 2 ranks, got 5"),
        (lambda: pipeline.run(Two(), [0]), "microbatches must be a whole number above 0, got 0"),
        (lambda: drills.run(Two(), ["flood"]), "unknown drill 'flood': there is unused, "),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_parts_are_experiments_of_their_own():
    assert experiments.get("training/drills").question == f"training: {training.ABOUT.parts['drills']}"


# --- every route against one process ---


@pytest.fixture(scope="module")
def report(ranks) -> Report:
    return training.run(ranks, steps=2)


@pytest.mark.slow
def test_every_route_has_the_loss_and_the_gradients_of_one_process(report):
    table = report.frame.set_index("route")
    assert list(table.index) == list(EVERY)
    assert table["equal"].all(), report.notes
    assert (table["gradients apart"] <= training.TOLERANCE).all() and (table["ranks alike"]).all()
    assert training.passed(report)
    first = report.tables["losses"].groupby("route")["one process"].first()
    assert first.nunique() == 1 and first.iloc[0] > 1


@pytest.mark.slow
def test_the_compiler_holds_what_each_route_lets_it_hold(report):
    table = report.frame.set_index("route")
    graphs = table[["forward graphs", "backward graphs", "breaks", "given up"]].apply(tuple, axis=1).to_dict()
    assert graphs["DDP, eager"] == graphs["FSDP2, eager"] == (0, 0, 0, 0)
    assert graphs["DDP, no_optimization"][:2] == (1, 1) and graphs["DDP, no_optimization"][2] > 0
    assert graphs["DDP, python_reducer"] == graphs["DDP, python_reducer, compiled autograd"] == (1, 1, 0, 0)
    assert graphs["FSDP2, whole"][3] == 1 and graphs["FSDP2, block by block"] == (1, 1, 0, 0)
    for name in (
        "gathered weights",
        "tensor parallel, functional",
        "tensor parallel, DTensor",
        "data x tensor parallel",
    ):
        assert graphs[name] == (1, 1, 0, 0)
    # six weights: a gather and a reduce-scatter each; a message each; one bucket
    sent = table["collectives"]
    assert (sent["gathered weights"], sent["DDP, python_reducer"], sent["DDP, eager"]) == (12, 6, 1)
    advice = parity.advice(report)
    assert (
        list(advice["route"]) == list(EVERY)
        and (advice["it costs"] != "").all()
        and (advice["take it"] != "").all()
    )


@pytest.mark.slow
def test_what_is_sharded_is_held_in_pieces(report):
    held = report.tables["memory"].query("rank == 1").pivot(index="route", columns="what", values="bytes")
    whole = held.loc["DDP, eager"]
    assert whole["parameters"] == 4 * (64 * 74 + 2 * 2 * 64 * 128)
    for name in ("FSDP2, block by block", "gathered weights"):
        assert held.loc[name, "parameters"] == held.loc[name, "gradients"] == whole["parameters"] / 2
        assert held.loc[name, "Adam's moments"] == whole["Adam's moments"] / 2
    assert (
        whole["parameters"] / 2 < held.loc["tensor parallel, functional", "parameters"] < whole["parameters"]
    )
    assert (held["peak of a step"] > 0).all()


@pytest.mark.slow
def test_a_route_that_learns_something_else_is_found(ranks):
    wrong = parity.run(ranks, ["in place, eager"], steps=2)
    assert not wrong.frame["equal"].any() and not training.passed(wrong)
    assert wrong.frame["gradients apart"].iloc[0] > 0.1 and wrong.notes[1] == "DIFFERENT: in place, eager"


# --- on the clock ---


@pytest.mark.slow
def test_a_cut_graph_starts_its_first_bucket_in_the_middle_of_backward_and_a_whole_one_behind_it(ranks):
    clock = steps.run(ranks, ["DDP, ddp_optimizer", "DDP, no_optimization"], batch=32)
    modes = clock.frame.set_index("route")
    cut, whole = modes.loc["DDP, ddp_optimizer"], modes.loc["DDP, no_optimization"]
    assert cut["backward graphs"] > 1 == whole["backward graphs"]
    # an order of calls on one thread, not a time: products are left after the first all-reduce, or none are
    assert cut["breaks"] == whole["breaks"] == 3, (
        "also behind a route that used the Python reducer in this process"
    )
    assert cut["first starts at"] < 1 <= whole["first starts at"] and whole["hidden"] == 0
    lines = steps.timelines(clock)
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


# --- to the end ---


@pytest.mark.slow
def test_in_place_in_eager_learns_something_else_and_no_rank_differs(ranks):
    seen = []
    learned = curves.run(ranks, steps=12, every=6, seen=seen.append)
    ends = learned.frame.set_index("route")
    alone = ends.loc["one process", "loss"]
    assert ends.loc["tensor parallel, functional", "loss"] == pytest.approx(alone, rel=1e-4)
    assert ends.loc["in place, compiled", "loss"] == pytest.approx(alone, rel=1e-4)
    assert abs(ends.loc["in place, eager", "loss"] - alone) > 0.02
    assert (ends["ranks apart by"] == 0).all()
    assert [len(one.tables["curves"]) for one in seen] == [4 * 6, 4 * 12]
    assert "in place, eager learns something else" in learned.figure().summary


@pytest.mark.slow
def test_a_pipeline_has_the_gradients_of_one_process(ranks):
    found = pipeline.run(ranks, [1, 4], width=32, hidden=64, batch=32, rounds=2)
    assert (found.frame["gradients apart"] <= training.TOLERANCE).all() and (
        found.frame["loss apart"] < 1e-5
    ).all()
    assert set(pipeline.timelines(found)) == {"1 microbatch", "4 microbatches"}
    assert found.frame["formula"].tolist() == [0.5, 0.2]


@pytest.mark.slow
def test_passes_bucket_collectives_or_move_them_from_their_waits(ranks):
    found = passes.run(ranks, ["as written", "bucketed", "reordered"], width=64, layers=3)
    order = found.frame.set_index(["way", "pass"])
    assert order["ranks alike"].all() and (order["gradients apart"] <= passes.TOLERANCE).all()
    assert (
        order.loc[("as written", "forward"), "gathers"]
        == order.loc[("as written", "backward"), "scatters"]
        == 3
    )
    assert (
        order.loc[("bucketed", "forward"), "gathers"] == order.loc[("bucketed", "backward"), "scatters"] == 1
    )
    between = order["products between"].groupby("way").sum()
    assert between["as written"] == 0 < between["reordered"]
    ran = passes.run(ranks, ["reordered"], width=64, layers=3, execute=True)
    assert (
        ran.frame["gradients apart"].max() <= passes.TOLERANCE
        and ran.frame["calls"].iloc[0] == order.loc[("reordered", "forward"), "calls"]
    )


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


# --- what takes a GPU ---


def _older_fsdp():
    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    plain = nn.Linear(8, 8).cuda()
    wrapped = FullyShardedDataParallel(plain, use_orig_params=True)
    x = torch.ones(2, 8, device="cuda")
    expected = wrapped(x).detach()
    y = torch.compile(wrapped)(x)
    y.sum().backward()
    return bool(torch.allclose(y, expected))


@pytest.mark.gpu
@pytest.mark.slow
def test_the_older_fsdp_compiles_where_there_is_a_gpu():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 1:
        pytest.skip("no GPU here, and the older FSDP wants an accelerator where no device is named")
    with Ranks(2 if torch.cuda.device_count() > 1 else 1, device="cuda", quiet=True) as ranks:
        assert all(ranks.run(_older_fsdp))


@pytest.mark.gpu
@pytest.mark.slow
def test_routes_learn_the_same_on_gpus():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("two GPUs are needed: NCCL takes one rank for each")
    with Ranks(2, device="cuda", quiet=True) as ranks:
        found = parity.run(ranks, [name for name in EVERY if ROUTES[name].ranks == 2], steps=2)
    assert found.frame["equal"].all(), found.notes
