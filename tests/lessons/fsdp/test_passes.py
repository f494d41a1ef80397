"""Inductor's passes for communication: the order of calls before and after, on two ranks."""

from __future__ import annotations

import pytest
import torch

from course.fsdp import passes
from labkit import lessons

program = lessons.program("fsdp")


def test_products_between_a_collective_and_its_wait_are_counted():
    assert passes.between("all_gather wait mm all_gather wait mm".split()) == 0
    assert passes.between("all_gather all_gather wait mm wait mm".split()) == 1
    assert passes.between("mm reduce_scatter mm mm wait".split()) == 2
    assert passes.between([]) == 0


def test_bad_sizes_are_refused_before_any_rank_is_asked():
    class Two:
        world_size = 2

    with pytest.raises(ValueError, match="width must be a multiple of the 2 ranks, got 5"):
        passes.run(Two(), (), None, None, None, width=5)
    with pytest.raises(ValueError, match="layers must be a whole number above 0, got 0"):
        passes.run(Two(), (), None, None, None, layers=0)


def _read(ranks, ways):
    made = (program.Chain, program.gathered, program.inductor_calls)
    return passes.run(ranks, ways, *made, width=64, layers=3)


@pytest.mark.slow
def test_passes_bucket_collectives_or_move_them_from_their_waits(ranks):
    found = _read(ranks, program.WAYS)
    order = found.frame.set_index(["way", "pass"])
    assert order["ranks alike"].all() and (order["gradients apart"] <= passes.TOLERANCE).all()
    assert "gradients are those of one process" in found.notes[0]
    written, bucketed = (order.xs(way, level="way") for way in ("as written", "bucketed"))
    assert written.loc["forward", "gathers"] == written.loc["backward", "scatters"] == 3
    assert bucketed.loc["forward", "gathers"] == bucketed.loc["backward", "scatters"] == 1
    between = order["products between"].groupby("way").sum()
    assert between["as written"] == between["bucketed"] == 0
    assert between["reordered"] > 0 and between["overlap scheduling"] > 0


def _executed(way):
    torch.compiler.reset()
    torch.manual_seed(0)
    model, pieces = program.gathered(program.Chain(64, 3)), []
    program.compiled_step(model, way, pieces, torch.ones(8, 64), execute=True)
    return [p.grad.clone() for p in model.parameters()], [passes.calls_of(piece) for piece in pieces]


@pytest.mark.slow
def test_what_inductor_wrote_runs_and_has_the_same_gradients_and_calls(ranks):
    for (plain, _), (moved, calls) in zip(
        ranks.run(_executed, "as written").values(), ranks.run(_executed, "reordered").values(), strict=True
    ):
        assert all(torch.allclose(a, b) for a, b in zip(plain, moved, strict=True))
        assert sum(map(passes.between, calls)) > 0
