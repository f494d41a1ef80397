"""The eager trap: exact counts at one block, evidence kept apart, and what it refuses before anything runs."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

from course.trap import calls
from course.trap import experiment as eager_trap
from course.trap import on_ranks as trap_ranks
from course.trap import tables as trap_tables
from labkit import lessons
from labkit.report import PerRank, Report

FORWARD = 4  # collectives of one block
# operations of one eager functional collective: itself, its wrapper, its wait; torch 2.14 wraps without one
WRAPS = torch.__version__ < "2.14"
EACH = 2 + WRAPS


@pytest.fixture(scope="module")
def report(shm_ranks) -> Report:
    # one size on either side of where the rounds get fewer
    return eager_trap.run(shm_ranks, 1, sizes=(4, 2 << 20), rounds=9, also=())


@pytest.mark.slow
def test_the_gate_is_in_place_in_eager_and_functional_is_not(report):
    work = report.tables["model_work"].drop(columns="evidence").set_index(["form", "rank"])
    assert set(work["functional"]["in place"]) == set(work["functional"]["gated"]) == {0}
    assert set(work["functional"]["functional"]) == {EACH * FORWARD}  # each allocates the tensor it returns
    more = work.loc["functional"] - work.loc["in place"]
    assert (more["allocations"] >= FORWARD).all() and (more["allocated_bytes"] > 0).all()
    assert (work.loc["gated"] == work.loc["in place"]).all().all()
    assert any("outputs agree with the unsharded model" in note for note in report.notes)


@pytest.mark.slow
def test_single_calls_are_counted_by_the_profiler(report):
    work = report.tables["work"].set_index(["evidence", "collective", "bytes", "form", "rank"]).sort_index()
    for evidence in ("shm · cpu", "host only"):
        for collective in calls.COLLECTIVES:
            plain = work.loc[evidence, collective, 2 << 20, "in place"]
            functional = work.loc[evidence, collective, 2 << 20, "functional"]
            assert (plain["functional"] == 0).all() and (plain["operations"] == 1).all()
            assert (functional["functional"] == EACH).all()
            assert (functional["allocations"] >= 1).all()
            result = (2 << 20) // (2 if collective == "reduce_scatter" else 1)  # a piece, of two ranks
            assert (functional["allocated_bytes"] >= result).all()
    assert (work.loc["host only", "all_reduce", 4, "in place"]["allocations"] == 0).all()


def counted_twice():
    from collections import Counter

    import torch

    from course.cliff.program import Config, full, functional, inplace
    from labkit.contract import dispatched

    x = torch.ones(16)
    model, tokens = full(Config(dim=16, heads=2, blocks=1, tokens=2)), torch.ones(1, 2, 16)
    with torch.no_grad():
        calls = [lambda: inplace(x), lambda: functional(x) + 1, lambda: model(tokens)]
        return [(Counter(trap_ranks.operations(call)), dispatched(call)) for call in calls]


@pytest.mark.parametrize("backend", ["shm_ranks", "ranks"])
def test_the_experiment_counts_what_the_guardrail_counts(backend, request):
    for once, again in request.getfixturevalue(backend).run(counted_twice)[0]:
        assert once == again and once


@pytest.mark.slow
def test_every_cell_has_a_verdict_over_the_floor_of_its_own_rounds(report):
    verdicts = report.tables["verdicts"]
    assert set(verdicts["outcome"]) <= {"faster", "slower", "cannot tell"}
    small, large = (verdicts[verdicts["bytes"] == n] for n in (4, 2 << 20))
    assert set(small["stage"]) == {"control", "done", "return"} and set(small["n"]) == {9}
    assert set(large["stage"]) == {"control", "done"} and set(large["n"]) == {trap_ranks.FEW}
    assert (verdicts.loc[verdicts["stage"] != "control", "floor"] >= 1).all()
    assert set(verdicts["evidence"]) == {"shm · cpu", "host only"}
    assert verdicts.groupby(["evidence", "collective", "bytes", "stage"]).size().max() == 1


@pytest.mark.slow
def test_waiting_at_once_is_the_same_sum(report):
    work = report.tables["model_work"].set_index("form")
    assert set(work.loc[eager_trap.WAITED, "functional"]) == {EACH * FORWARD}
    assert any(v.a == eager_trap.WAITED for v in report.verdicts)


@pytest.mark.slow
def test_the_ladder_adds_up_to_the_functional_form(report):
    ladder, times = report.tables["ladder"], report.tables["summary"]
    assert len(report.provenance["layers"]) == 12
    for evidence, rows in ladder.groupby("evidence"):
        assert (
            list(rows["rung"])[0] == "in place"
            and list(rows["rung"])[-1] == "not explained"
            and len(rows) == 11
        )
        added = rows["added_us"].sum() * FORWARD / 1e3
        whole = times.set_index("model, eager")[f"{evidence}: ms"]
        assert added == pytest.approx(whole["functional"] - whole["in place"], abs=0.02)
    assert not set(ladder["rung"]) & {verdict.a for verdict in report.verdicts}


def doubled(x, group=None):
    """+ one more"""
    return lessons.program("trap").copied(x)


def test_a_readers_own_ladder_takes_its_place(shm_ranks):
    own = {
        **vars(lessons.program("cliff")),
        **vars(lessons.program("trap")),
        "doubled": doubled,
        "RUNGS": [doubled],
    }
    small = {"collectives": "all_reduce", "sizes": [4], "rounds": 2, "also": (), "host_only": False}
    found = eager_trap.run(shm_ranks, 1, program=own, **small)
    assert list(found.tables["ladder"]["rung"]) == ["in place", "+ one more", "not explained"]
    assert "program: RUNGS, doubled edited" in found.notes


@pytest.mark.slow
def test_it_survives_saving(report, tmp_path):
    loaded = Report.load(report.save(tmp_path))
    assert list(loaded.tables) == list(report.tables)
    pd.testing.assert_frame_equal(
        loaded.tables["verdicts"][["collective", "bytes", "outcome"]],
        report.tables["verdicts"][["collective", "bytes", "outcome"]],
        check_dtype=False,
    )
    assert [v.outcome for v in loaded.verdicts] == [v.outcome for v in report.verdicts]
    assert loaded.figure().summary


def test_a_readers_own_gate_takes_its_place(shm_ranks):
    from course.cliff.program import functional

    small = {"collectives": "all_reduce", "sizes": [4], "rounds": 2, "also": (), "host_only": False}
    found = eager_trap.run(shm_ranks, 1, reduces={"gated": functional}, **small)
    assert f"eager, gated: {EACH * FORWARD} functional operations in a forward" in found.notes


@pytest.mark.slow
def test_a_size_that_would_take_too_long_is_left_out_on_all_ranks_and_said(ranks):
    found = eager_trap.run(
        ranks, 1, collectives=["all_reduce"], sizes="4,2M", rounds=2, also=(), host_only=False, patience=1e-9
    )
    assert set(found.tables["verdicts"]["bytes"]) == {4}
    assert any(note.startswith("left out on gloo · cpu: all_reduce of 2 MB") for note in found.notes)


def test_bad_requests_are_refused_before_anything_runs(shm_ranks):
    before = shm_ranks.calls
    for kwargs, rule in (
        ({"rounds": 0}, "rounds must be a whole number of at least 2, got 0"),
        ({"rounds": 1}, "rounds must be a whole number of at least 2, got 1"),
        ({"rounds": math.nan}, "rounds must be a whole number"),
        ({"blocks": 0}, "blocks must be a whole number from 1 to 1000, got 0"),
        (
            {"collectives": ["send"]},
            "unknown collective 'send': there is all_reduce, all_gather, reduce_scatter",
        ),
        ({"collectives": []}, "no collective was chosen"),
        ({"sizes": "4,x"}, "such as 4, 16K or 64M, got 'x'"),
        ({"sizes": "-4"}, "got '-4'"),
        ({"sizes": [6]}, "a size is a multiple of 4 bytes up to 1G"),
        ({"sizes": [math.nan]}, "got nan"),
        ({"sizes": "2G"}, "up to 1G"),
        ({"sizes": []}, "no size was given"),
        ({"patience": 0}, "patience is a number of seconds above 0, got 0"),
        ({"patience": math.nan}, "patience is a number of seconds above 0, got nan"),
        ({"reduces": {"async": int}}, "reduces names form 'async': there is in place, functional, gated"),
    ):
        with pytest.raises(ValueError, match=rule):
            eager_trap.run(shm_ranks, **kwargs)
    assert shm_ranks.calls == before


def one_rank(rounds: int, seconds: float = 0.001) -> dict:
    forms = {form: ((seconds,) * rounds, (seconds,) * rounds) for form in calls.FORMS}
    return {"laps": {("all_reduce", 4): forms}}


def test_ranks_with_different_counts_and_times_that_are_none_are_named():
    runs = {"shm · cpu": PerRank([one_rank(9), one_rank(8)])}
    with pytest.raises(ValueError, match="rank 0 has 9 rounds and rank 1 has 8"):
        trap_tables._verdicts(runs)
    with pytest.raises(ValueError, match="is nan: a time is a finite number"):
        trap_tables._verdicts({"shm · cpu": PerRank([one_rank(9), one_rank(9, math.nan)])})
    with pytest.raises(ValueError, match="one round has no spread"):
        trap_tables._verdicts({"shm · cpu": PerRank([one_rank(1), one_rank(1)])})


@pytest.mark.gpu
def test_device_time_stands_apart_and_a_replay_is_the_floor():
    import labkit
    from labkit import hardware

    count = len(hardware.gpus())
    if not count:
        pytest.skip("needs an NVIDIA GPU")
    with labkit.Ranks(min(2, count), device="cuda", timeout=120, quiet=True) as ranks:
        if count == 1:  # gloo does not capture; one rank of NCCL does
            ranks.close()
            ranks = labkit.Ranks(1, device="cuda", backend="nccl", timeout=120, quiet=True)
        found = ranks.run(device_rows)
        ranks.close()
    for table in found:
        assert {row["form"] for row in table} == {"in place", "functional"}
        assert all(row["host_us"] > 0 and row["device_us"] > 0 for row in table)
        # a sum of one rank is no kernel, and its graph is empty
        assert count == 1 or all(row["replay_device_us"] > 0 for row in table)


def device_rows():
    import torch

    from course.trap import calls, device
    from labkit.ranks import here

    made = calls.forms("all_reduce", 1 << 16, torch.device(here().device))
    return device.measure("all_reduce", 1 << 16, made, 5, here().backend)
