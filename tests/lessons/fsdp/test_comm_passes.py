"""Inductor's passes for communication: the order of calls before and after, on two ranks."""

from __future__ import annotations

import pytest
import torch

from course.fsdp import comm_passes
from labkit.ranks import Ranks


def test_products_between_a_collective_and_its_wait_are_counted():
    assert comm_passes.between("all_gather wait mm all_gather wait mm".split()) == 0
    assert comm_passes.between("all_gather all_gather wait mm wait mm".split()) == 1
    assert comm_passes.between([]) == 0


def test_bad_sizes_are_refused():
    class Two:
        world_size = 2

    with pytest.raises(ValueError, match="rounds must be a whole number of at least 2, got 1"):
        comm_passes.run(None, rounds=1)
    with pytest.raises(ValueError, match="width must be a multiple of the 2 ranks, got 5"):
        comm_passes.run(Two(), width=5)


@pytest.mark.slow
def test_the_passes_move_collectives_and_the_switch_alone_does_not():
    with Ranks(2, "cpu", "gloo", quiet=True) as ranks:
        report = comm_passes.run(ranks, width=64, layers=3, rounds=3)  # of two, the default order is as good
    order = report.tables["order"].set_index("way")
    assert order["right"].all()
    moved = order["products between"]
    assert moved[comm_passes.DEFAULT] == moved[comm_passes.SWITCH]
    if torch.__version__ < "2.15":  # there aten_distributed_optimizations overlaps by default
        assert moved[comm_passes.SWITCH] == 0
    assert moved[comm_passes.PASSES] > 0 and moved[comm_passes.SCHEDULING] > 0
    assert len(report.verdicts) == len(comm_passes.WAYS) - 1 and len(report.tables["samples"]) == 2 * 4 * 3
