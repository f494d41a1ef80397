"""The eager trap: exact counts at one block, evidence kept apart, and what it refuses before anything runs."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

from labkit.lessons.trap import calls
from labkit.lessons.trap import experiment as eager_trap
from labkit.lessons.trap import on_ranks as trap_ranks
from labkit.lessons.trap import tables as trap_tables
from labkit.report import PerRank, Report

FORWARD = 4  # collectives of one block
# operations of one eager functional collective: itself, its wrapper, its wait; torch 2.14 wraps without one
WRAPS = torch.__version__ < "2.14"
EACH = 2 + WRAPS


@pytest.fixture(scope="module")
def report(shm_ranks) -> Report:
    # one size on either side of where the rounds get fewer
    return eager_trap.run(shm_ranks, 1, sizes=(4, 2 << 20), rounds=9, also=())


def test_the_gate_is_in_place_in_eager_and_functional_is_not(report):
    work = report.tables["model_work"].drop(columns="evidence").set_index(["form", "rank"])
    assert set(work["functional"]["in place"]) == set(work["functional"]["gated"]) == {0}
    assert set(work["functional"]["functional"]) == {EACH * FORWARD}  # each allocates the tensor it returns
    more = work.loc["functional"] - work.loc["in place"]
    assert (more["allocations"] >= FORWARD).all() and (more["allocated_bytes"] > 0).all()
    assert (work.loc["gated"] == work.loc["in place"]).all().all()
    assert any("outputs agree with the unsharded model" in note for note in report.notes)


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

    from labkit.contract import dispatched
    from labkit.lessons.cliff.program import Config, full, functional, inplace

    x = torch.ones(16)
    model, tokens = full(Config(dim=16, heads=2, blocks=1, tokens=2)), torch.ones(1, 2, 16)
    with torch.no_grad():
        calls = [lambda: inplace(x), lambda: functional(x) + 1, lambda: model(tokens)]
        return [(Counter(trap_ranks.operations(call)), dispatched(call)) for call in calls]


@pytest.mark.parametrize("backend", ["shm_ranks", "ranks"])
def test_the_experiment_counts_what_the_guardrail_counts(backend, request):
    for once, again in request.getfixturevalue(backend).run(counted_twice)[0]:
        assert once == again and once


def test_every_cell_has_a_verdict_over_the_floor_of_its_own_rounds(report):
    verdicts = report.tables["verdicts"]
    assert set(verdicts["outcome"]) <= {"faster", "slower", "cannot tell"}
    small, large = (verdicts[verdicts["bytes"] == n] for n in (4, 2 << 20))
    assert set(small["stage"]) == {"control", "done", "return"} and set(small["n"]) == {9}
    assert set(large["stage"]) == {"control", "done"} and set(large["n"]) == {trap_ranks.FEW}
    assert (verdicts.loc[verdicts["stage"] != "control", "floor"] >= 1).all()
    assert set(verdicts["evidence"]) == {"shm · cpu", "host only"}
    assert verdicts.groupby(["evidence", "collective", "bytes", "stage"]).size().max() == 1


def test_the_ladder_has_autograd_registration_as_its_own_row(report):
    ladder = report.tables["ladder"]
    for _, part in ladder.groupby("evidence"):
        assert list(part["step"]) == list(trap_ranks.STEPS.values())
        assert part["added_us"].sum() == pytest.approx(part["us"].iloc[-1])
    assert "+ autograd registration" in set(ladder["step"])


def dispatched_in_python():
    """By step of the ladder: how often an asynchronous tensor was dispatched in Python, and what the addition gave."""
    import torch

    from labkit.torch_compat import funcol

    kind, seen = funcol.AsyncCollectiveTensor, []
    kept = kind.__dict__["__torch_dispatch__"]

    def counted(cls, func, types, args=(), kwargs=None):
        seen.append(str(func))
        return kept.__func__(cls, func, types, args, kwargs)

    kind.__torch_dispatch__ = classmethod(counted)
    try:
        found = {}
        for step, (mode, call) in trap_ranks.layers(torch.device("cpu")).items():
            seen.clear()
            with mode():
                y = call()
            found[step] = (seen.count("aten.add.Tensor"), bool((y == 1).all()), y.requires_grad)
        return found
    finally:
        kind.__torch_dispatch__ = kept


def test_each_step_of_the_ladder_adds_what_its_name_says(shm_ranks):
    found = shm_ranks.run(dispatched_in_python).same()
    assert list(found) == list(trap_ranks.STEPS)
    assert {step: first_uses for step, (first_uses, _, _) in found.items()} == {
        **dict.fromkeys(["in place", "bare operator", "wrapper", "registered"], 0), "used": 1, "recorded": 1,
    }  # fmt: skip
    assert all(right for _, right, _ in found.values())
    assert [step for step, (_, _, tracked) in found.items() if tracked] == ["recorded"]


def test_the_sum_of_the_layers_is_held_against_what_the_model_takes_more(report):
    extra, ladder = report.tables["extra"], report.tables["ladder"].set_index(["evidence", "step"])["us"]
    assert set(extra["evidence"]) == {"shm · cpu", "host only"} and set(extra["collectives"]) == {FORWARD}
    for evidence, part in extra.groupby("evidence"):
        ms = part.set_index("part")["ms"]
        first = ladder[evidence, trap_ranks.STEPS["used"]] - ladder[evidence, trap_ranks.STEPS["in place"]]
        assert ms["calls"] == pytest.approx(FORWARD * first / 1e3)
        assert ms["extra"] == pytest.approx(ms["calls"] + ms["rest"])
        said = report.figure("ladder").summary
        assert f"4 such calls, up to the first use, against as many in place: {ms['calls']:+.1f} ms" in said
        assert f"Not explained by such calls: {ms['rest']:+.1f} ms" in said
    # waiting at once leaves no asynchronous tensor, and is no other sum
    work = report.tables["model_work"].set_index("form")
    assert set(work.loc[trap_ranks.WAITED, "functional"]) == {EACH * FORWARD}
    assert any(v.a == trap_ranks.WAITED for v in report.verdicts)


def test_the_profile_says_what_each_operation_is_for(report):
    table = report.tables["breakdown"]
    mine = table.query("evidence == 'host only' and collective == 'all_reduce' and rank == 0")
    kinds = mine.groupby("form")["kind"].agg(set)
    assert kinds["in place"] == {"python", "collective"}
    assert kinds["functional"] >= {
        "python",
        "operator",
        "allocation",
        "copy",
        "wait",
        "collective",
    } | ({"wrapping"} if WRAPS else set())
    assert (table["us"] >= 0).all()


def test_it_survives_saving(report, tmp_path):
    loaded = Report.load(report.save(tmp_path))
    assert list(loaded.tables) == list(report.tables)
    pd.testing.assert_frame_equal(
        loaded.tables["verdicts"][["collective", "bytes", "outcome"]],
        report.tables["verdicts"][["collective", "bytes", "outcome"]],
        check_dtype=False,
    )
    assert [v.outcome for v in loaded.verdicts] == [v.outcome for v in report.verdicts]
    for which in ("verdicts", "crossover", "ladder", "breakdown"):
        assert loaded.figure(which).summary


def test_a_readers_own_gate_takes_its_place(shm_ranks):
    from labkit.lessons.cliff.program import functional

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


def rows(*outcomes: str) -> pd.DataFrame:
    return pd.DataFrame(
        [("shm", "all_reduce", 4 << (4 * i), "done", said, 1.5) for i, said in enumerate(outcomes)],
        columns=["evidence", "collective", "bytes", "stage", "outcome", "high"],
    )


@pytest.mark.parametrize(
    ("outcomes", "at"),
    [
        (("slower", "cannot tell", "slower", "faster", "cannot tell"), 4 << 12),
        (("cannot tell", "cannot tell"), 4),
        (("faster", "slower"), None),
    ],
)
def test_the_crossover_holds_for_every_larger_size(outcomes, at):
    (found,) = trap_tables.crossover(rows(*outcomes)).to_dict("records")
    assert (None if pd.isna(found["bytes"]) else found["bytes"]) == at
    assert pd.isna(found["at_most"]) == (at is None)


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

    from labkit.lessons.trap import calls, device
    from labkit.ranks import here

    made = calls.forms("all_reduce", 1 << 16, torch.device(here().device))
    return device.measure("all_reduce", 1 << 16, made, 5, here().backend)
