"""Lesson 05's own cells: what they count, the single calls that they sweep, and the clocks on a GPU."""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import Any

import lesson_cells
import pandas as pd
import pytest
import torch

import labkit
from labkit import hardware, timing

LESSON = "05_eager_trap"
# operations of one eager functional collective: itself, its wrapper, its wait; torch 2.14 wraps without one
EACH = 2 + (torch.__version__ < "2.14")


def run(ranks: Any, *ids: str, **names: Any) -> dict[str, Any]:
    given = {"ranks": ranks, "labkit": labkit, "pd": pd, "timing": timing, "Counter": Counter, "time": time}
    return lesson_cells.run(LESSON, "program-05-forms", *ids, functools=functools, **given, **names)


@pytest.mark.parametrize("backend", ["shm_ranks", "ranks"])
def test_the_gate_is_in_place_in_eager_and_functional_is_not(backend, request):
    counted = run(request.getfixturevalue(backend), "trap-operations")["counted"]
    assert counted["inplace"] == counted["gated"] and counted["inplace"].total() == 1
    functional = [name for name in counted["functional"] if name.startswith("_c10d_functional::")]
    assert len(functional) == EACH


def counted_twice(operations):
    from labkit import lessons
    from labkit.contract import dispatched

    cliff = lessons.program("cliff")
    x = torch.ones(16)
    model = cliff.full(cliff.Config(dim=16, heads=2, blocks=1, tokens=2))
    tokens = torch.ones(1, 2, 16)
    with torch.no_grad():
        calls = [lambda: cliff.inplace(x), lambda: cliff.functional(x) + 1, lambda: model(tokens)]
        return [(operations(call), dispatched(call)) for call in calls]


@pytest.mark.parametrize("backend", ["shm_ranks", "ranks"])
def test_the_cell_counts_what_the_guardrail_counts(backend, request):
    ranks = request.getfixturevalue(backend)
    operations = run(ranks, "trap-operations")["operations"]
    for once, again in ranks.run(counted_twice, operations)[0]:
        assert once == again and once


def sizes_of(single, collective, nbytes):
    """Bytes that the functional form returns; operations of the one in place, and what that returns."""
    from labkit.contract import dispatched

    classic, functional = single(collective, nbytes)
    with torch.no_grad():
        return functional().nbytes, len(dispatched(classic)), classic()


def test_single_calls_have_the_size_that_was_asked_for(shm_ranks):
    single = run(shm_ranks, "trap-sweep", SIZES=[8], LINKS=["shm"], ROUNDS=2)["single"]
    for collective, nbytes in (("all_reduce", 64), ("all_gather", 64), ("reduce_scatter", 32)):
        for result, operations, returned in shm_ranks.run(sizes_of, single, collective, 64).values():
            assert (result, operations, returned) == (nbytes, 1, None)
        assert shm_ranks.run(sizes_of, single, collective, 4)[0][1] == 1  # at least a number for each rank


def test_a_sweep_has_every_case_over_every_link(shm_ranks):
    swept = run(shm_ranks, "trap-sweep", SIZES=[8, 1 << 17], LINKS=["shm", "fake"], ROUNDS=3)["swept"]
    assert set(swept) == {"shm · cpu", "host only"}
    for table in swept.values():
        cases = table.groupby(["collective", "bytes", "variant", "rank"]).size()
        assert len(cases) == 3 * 2 * 3 * 2 and set(cases) == {3}
        assert (table["seconds"] > 0).all()


@pytest.mark.gpu
def test_device_time_stands_apart_and_a_replay_is_the_floor():
    count = len(hardware.gpus())
    if not count:
        pytest.skip("needs an NVIDIA GPU")
    # gloo does not capture; one rank of NCCL does
    with labkit.Ranks(min(2, count), device="cuda", backend="nccl", timeout=120, quiet=True) as ranks:
        found = run(ranks, "trap-sweep", "trap-device", SIZES=[1 << 16], LINKS=["nccl"], ROUNDS=5)["on_gpu"]
    assert set(found["form"]) == {"in place", "functional"} and set(found["rank"]) == set(
        range(min(2, count))
    )
    assert (found[["host_us", "device_us"]] > 0).all(axis=None)
    # a sum of one rank is no kernel, and its graph is empty
    assert count == 1 or (found["replay_device_us"] > 0).all()
