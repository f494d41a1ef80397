"""The contract whose parts are switched on and off: each part catches its own defect."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from labkit.contract import ContractError, Exchange, Plan, rehearse
from labkit.lessons.symmetry.switchable import Contract


def test_a_part_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no part partiy"):
        Contract(Exchange(dist.HashStore(), 0, 1), ["partiy"])


def program(ex, on, defect):
    """A rank of a program with one defect on rank 1; what each part has to notice is said to it."""
    mine = ex.rank == 1
    contract = Contract(ex, on)
    contract.settings(attention="flash" if mine and defect == "parity" else "triton")
    weights = {"w": torch.ones(2)}
    check = contract.watch(weights)
    with contract.call(Plan.of("infer", calls=2 if mine and defect == "plan" else 1)) as run:
        contract.inputs(0, x=torch.zeros(1) + (mine and defect == "digests"))
        for _ in range(2 if mine and defect == "plan" else 1):
            run.step()
    if mine and defect == "fingerprints":
        weights["w"] += 1
    check()
    return "ran"


@pytest.mark.parametrize("defect", ["parity", "plan", "digests", "fingerprints"])
def test_each_part_catches_its_defect_and_nothing_else_does(defect):
    everything = ("parity", "plan", "digests", "fingerprints")
    assert all(
        isinstance(found, ContractError) for found in rehearse(2, lambda ex: program(ex, [defect], defect))
    )
    without = [part for part in everything if part != defect]
    assert rehearse(2, lambda ex: program(ex, without, defect)) == ["ran", "ran"]
    assert rehearse(2, lambda ex: program(ex, everything, "")) == ["ran", "ran"]
