"""The places of a drill: each part of the contract catches its own defect, and what is off does nothing."""

from __future__ import annotations

import pytest
import torch

from course.symmetry.drills import Site
from labkit.contract import ContractError, Plan, rehearse


def program(site, defect):
    """A rank of a program with one defect on rank 1; what each part has to notice is said to it."""
    calls = 2 if site.odd and defect == "plan" else 1
    site.settings(attention="flash" if site.odd and defect == "parity" else "triton")
    with site.call(Plan.of("infer", calls=calls)) as step:
        site.inputs(x=torch.zeros(1) + (site.odd and defect == "digests"))
        for _ in range(calls):
            step()
    return "ran"


def run(on, defect):
    return rehearse(2, lambda exchange: program(Site(exchange, on, exchange.rank == 1), defect))


@pytest.mark.parametrize("defect", ["parity", "plan", "digests"])
def test_each_part_catches_its_defect_and_nothing_else_does(defect):
    everything = ("parity", "plan", "digests")
    assert all(isinstance(found, ContractError) for found in run([defect], defect))
    assert run([part for part in everything if part != defect], defect) == ["ran", "ran"]
    assert run(everything, "") == ["ran", "ran"]
