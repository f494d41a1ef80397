"""Sharded training: every route learns what one process learns, and what is gathered, graphed and marked."""

from __future__ import annotations

import pytest

from course.fsdp.moments import spans
from course.shared.training import compare
from labkit import Ranks, lessons
from labkit.report import Report

program = lessons.program("fsdp")
WHOLE = 4 * (64 * 128 + 4 * 2 * 128 * 512 + 10 * 128)  # bytes of all weights of the lesson's model


@pytest.fixture(scope="module")
def report(ranks) -> Report:
    return compare(ranks, program.seeded, program.ROUTES, steps=2)


@pytest.mark.slow
def test_every_route_has_the_loss_and_the_gradients_of_one_process(report):
    table = report.frame
    assert list(table["route"]) == list(program.ROUTES)
    assert table["equal"].all() and table["ranks alike"].all(), report.notes


@pytest.mark.slow
def test_each_route_gathers_and_reduces_what_it_must(report):
    sent = report.tables["collectives"]
    gathers = sent[sent["collective"].str.contains("gather")].set_index("route")["a step"].to_dict()
    scatters = sent[sent["collective"].str.contains("scatter")].set_index("route")["a step"].to_dict()
    # four blocks and the root; a block is gathered again in backward unless it was kept
    assert gathers == {
        "one unit": 1, "units": 9, "units, kept": 5, "units, compiled": 9, "small FSDP": 9,
        "gathered weights": 10, "gathered again": 19,
    }  # fmt: skip
    assert scatters == {
        "one unit": 1, "units": 5, "units, kept": 5, "units, compiled": 5, "small FSDP": 5,
        "gathered weights": 10, "gathered again": 10,
    }  # fmt: skip
    table = report.frame.set_index("route")
    graphs = table[["forward graphs", "backward graphs", "breaks", "given up"]].apply(tuple, axis=1).to_dict()
    for name in ("units, compiled", "gathered weights", "gathered again"):
        assert graphs[name] == (1, 1, 0, 0)
    assert graphs["units"] == graphs["small FSDP"] == (0, 0, 0, 0)


@pytest.mark.slow
def test_what_is_sharded_is_held_in_pieces(report):
    held = report.tables["memory"].query("rank == 1").pivot(index="route", columns="what", values="bytes")
    assert held.loc["DDP", "parameters"] == WHOLE
    for name in ("units", "small FSDP", "gathered weights"):
        assert held.loc[name, "parameters"] == held.loc[name, "gradients"] == WHOLE / 2
        assert held.loc[name, "Adam's moments"] == WHOLE
    # over gloo a peak is an upper bound; what is whole at once differs by more than that
    assert held.loc["units", "peak of a step"] < held.loc["one unit", "peak of a step"]


def _summed(model, backend):
    """A small FSDP that forgets to divide by the ranks."""
    route = program.small_fsdp(model)
    finish = route.after

    def after():
        finish()
        for piece in model.parameters():
            piece.grad *= 2

    route.after = after
    return route


@pytest.mark.slow
def test_a_wrong_gradient_is_found(ranks):
    wrong = compare(ranks, program.seeded, {"summed": _summed}, steps=2)
    assert not wrong.frame["equal"].any()
    different, bound = wrong.notes
    assert different == "DIFFERENT from one process: summed" and "over gloo" in bound


def _marked():
    import torch

    from course.shared import training

    route = program.ROUTES["units"](program.seeded(16, 32, 3), None)
    images, labels = training.on_device(*(part[:8] for part in training.digits()))
    for _ in range(2):
        route.backward(images, labels)
    with torch.profiler.profile() as profile:
        route.backward(images, labels)
    return [(e.name, e.time_range.start, e.time_range.end) for e in profile.events() if "FSDP::" in e.name]


@pytest.mark.slow
def test_spans_are_read_from_what_torch_marks():
    with Ranks(2, device="cpu", backend="gloo", quiet=True, live=False) as two:
        table = spans({"units": two.run(_marked)[0]})
    counts = table.groupby(["unit", "what"]).size()
    assert counts["root"].to_dict() == {"gathering": 1, "whole": 1, "reducing": 1}
    for block in ("blocks.0", "blocks.1", "blocks.2"):
        assert counts[block].to_dict() == {"gathering": 2, "whole": 2, "reducing": 1}
    with pytest.raises(ValueError, match="no all-gather is marked in the step of 'none'"):
        spans({"none": [("aten::mm", 0, 1)]})


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
        assert all(ranks.run(_older_fsdp).values())


@pytest.mark.gpu
@pytest.mark.slow
def test_routes_learn_the_same_on_gpus():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("two GPUs are needed: NCCL takes one rank for each")
    with Ranks(2, device="cuda", quiet=True) as ranks:
        found = compare(ranks, program.seeded, program.ROUTES, steps=2)
    assert found.frame["equal"].all(), found.notes
