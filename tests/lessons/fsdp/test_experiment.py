"""Sharded training: every route learns what one process learns, and what the compiler made of each."""

from __future__ import annotations

from functools import partial

import pytest

from labkit import Ranks
from labkit.lessons.fsdp import experiment as fsdp
from labkit.lessons.fsdp import passes
from labkit.lessons.fsdp.routes import FOUR, ROUTES
from labkit.lessons.shared.training import compare
from labkit.lessons.shared.training_model import Model, Sizes
from labkit.report import Report

make = partial(Model, Sizes())


class Two:
    """Stands for two ranks, none of which is ever asked: what is refused is refused before."""

    world_size = 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fsdp.run(Two(), ["clock", "routes"]), "one part of fsdp at a time, got clock, routes"),
        (lambda: fsdp.run(Two(), ["clock"], steps=3), "fsdp/clock takes no steps"),
        (lambda: passes.run(Two(), width=5), "width must be a multiple of the 2 ranks, got 5"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.fixture(scope="module")
def report(ranks) -> Report:
    return fsdp.run(ranks, steps=2)


@pytest.mark.slow
def test_every_route_has_the_loss_and_the_gradients_of_one_process(report):
    table = report.frame
    assert list(table["route"]) == list(ROUTES)
    assert table["equal"].all() and table["ranks alike"].all() and fsdp.passed(report), report.notes


@pytest.mark.slow
def test_the_compiler_holds_what_each_route_lets_it_hold(report):
    table = report.frame.set_index("route")
    graphs = table[["forward graphs", "backward graphs", "breaks", "given up"]].apply(tuple, axis=1).to_dict()
    assert graphs["FSDP2, eager"] == (0, 0, 0, 0)
    assert graphs["FSDP2, whole"][3] == 1 and graphs["FSDP2, block by block"] == (1, 1, 0, 0)
    for name in ("gathered weights", "tensor parallel, functional", "tensor parallel, DTensor"):
        assert graphs[name] == (1, 1, 0, 0)
    # six weights: a gather and a reduce-scatter each
    assert table.loc["gathered weights", "collectives"] == 12


@pytest.mark.slow
def test_what_is_sharded_is_held_in_pieces(report):
    held = report.tables["memory"].query("rank == 1").pivot(index="route", columns="what", values="bytes")
    whole = 4 * (64 * 74 + 2 * 2 * 64 * 128)
    for name in ("FSDP2, block by block", "gathered weights"):
        assert held.loc[name, "parameters"] == held.loc[name, "gradients"] == whole / 2
        assert held.loc[name, "Adam's moments"] == whole
    assert whole / 2 < held.loc["tensor parallel, functional", "parameters"] < whole
    assert (held["peak of a step"] > 0).all()


@pytest.mark.slow
def test_two_axes_take_four_ranks():
    with Ranks(4, device="cpu", backend="gloo", quiet=True, live=False) as four:
        found = compare(four, make, FOUR, steps=2).frame
    assert found["equal"].all() and found.loc[0, ["forward graphs", "backward graphs", "ranks"]].tolist() == [
        1,
        1,
        4,
    ]


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
        found = compare(ranks, make, ROUTES, steps=2)
    assert found.frame["equal"].all(), found.notes
