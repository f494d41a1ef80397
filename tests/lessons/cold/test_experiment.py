"""Cold and warm: what is found, built, refused and wrong in fresh processes, and how the ways are drawn."""

from __future__ import annotations

import pandas as pd
import pytest

from course.cold import experiment as cold
from course.cold import figures as drawn
from course.cold import program, survival
from course.cold.experiment import AOT, ARTIFACTS, COLD, DISK, MACHINE, SKEW
from course.cold.phases import CHECK, CPP, DYNAMO, INDUCTOR, LOAD, RUN, segments
from labkit import Ranks, contract
from labkit.report import Report


def test_nested_phases_are_cut_without_a_gap_and_other_threads_left_out():
    events = [
        (1.0, "B", "dynamo", 1), (2.0, "B", "async_compile.wait", 1), (2.1, "B", "compile_file", 2),
        (3.0, "E", "compile_file", 2), (4.0, "E", "async_compile.wait", 1), (4.5, "B", "gc", 1),
        (5.0, "E", "dynamo", 1),
    ]  # fmt: skip
    found = segments(events, [(0.0, LOAD), (0.5, RUN)], 6.0, thread=1)
    assert found == [
        (LOAD, 0.0, 0.5), (RUN, 0.5, 1.0), (DYNAMO, 1.0, 2.0), (CPP, 2.0, 4.0), (DYNAMO, 4.0, 5.0), (RUN, 5.0, 6.0),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_check_of_cpu_instructions_is_a_phase_of_its_own_and_not_inductors(
    shm_ranks, tmp_path, monkeypatch
):
    # with it, Inductor tries AMX and VNNI only, which not every CPU has
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK", raising=False)
    report = cold.run(shm_ranks, [COLD, DISK], requests=4, folder=tmp_path)
    phases = report.tables["phases"].set_index(["form", "rank"])
    # paid in every process, also in one that finds its caches
    assert (phases[CHECK] > 0).all() and len(phases) == 4
    assert "CPU instruction check" in report.figure().summary
    assert phases.loc[COLD, INDUCTOR].gt(0).all() and "C++ build" in report.figure().summary


def test_the_check_of_cpu_instructions_is_seen_where_torch_counts_code_generation():
    import time

    from labkit import torch_compat
    from labkit.torch_compat import require

    isa = require("torch._inductor.cpu_vec_isa")

    class Works(isa.VecAVX2):
        def __bool__(self):
            return self.check_build("int one() { return 1; }")

    kept = isa.VecISA.check_build
    isa.VecISA.check_build = lambda self, code: bool(code)
    try:
        with torch_compat.compile_events() as events:
            began = time.time()
            with require("torch._dynamo.utils").dynamo_timed("Scheduler.codegen"):
                assert Works()
            ended = time.time()
        assert Works()
    finally:
        isa.VecISA.check_build = kept
    assert [name for _, _, name, _ in events].count(torch_compat.CPU_CHECK) == 2
    found = segments(events, [(began, RUN)], ended, events[0][3])
    assert [phase for phase, _, _ in found if phase != RUN] == [INDUCTOR, CHECK, INDUCTOR]


def row(form: str, rank: int, ready: float, compiled: float, builds: int = 1, round_: int = 0) -> dict:
    spans = [(DYNAMO, 0.0, compiled), (RUN, compiled, ready)]
    return {
        "what": "served", "form": form, "round": round_, "rank": rank, "check_s": 0.0, "ready_s": ready,
        "latency": [ready, *[0.001] * 9], "builds": builds, "hit": 0, "miss": 2, "error": 0.0, "spans": spans,
    }  # fmt: skip


@pytest.fixture
def told() -> Report:
    rows = [
        {"what": MACHINE, "seconds": 9.0, "builds": 4, "date": "2026-01-02T00:00:00+00:00"},
        row(COLD, 0, 5.0, 5.0), row(COLD, 1, 5.0, 4.0), row(SKEW, 0, 6.0, 1.0, 0), row(SKEW, 1, 6.0, 6.0),
    ]  # fmt: skip
    return cold._report(rows, "shm · cpu", {}, ["resumed"], budget=5.5)


def test_the_slowest_rank_counts_and_the_budget_decides(told):
    ready = told.frame.set_index("form")
    assert ready.loc[COLD, "ready_s"] == 5.0 and list(ready["fits"]) == [True, False]
    assert ready.loc[COLD, "max_ms"] == 5000 and ready.loc[COLD, "warm_max_ms"] == 1
    assert "4 C++ builds, 9.0 s, in no row" in told.notes[1] and told.notes[-2:] == [
        "each way was taken 1 time: no verdict", "resumed",
    ]  # fmt: skip
    assert not told.verdicts


def test_rounds_give_verdicts_against_the_cold_way():
    rows = [{"what": MACHINE, "seconds": 9.0, "builds": 4, "date": "2026-01-02T00:00:00+00:00"}]
    for i in range(8):
        rows += [row(form, rank, s, s, round_=i) for form, s in ((COLD, 5.0), (DISK, 1.0)) for rank in (0, 1)]
    (verdict,) = cold._report(rows, "shm · cpu", {}, [], None).verdicts
    assert verdict.outcome == "faster" and verdict.n == 8 and verdict.ratio == pytest.approx(0.2)


def test_each_picture_says_what_it_shows(told):
    assert "cold: 5.0 s, 1 C++ build: Dynamo 5.0 s" in told.figure().summary
    lanes = {"rank 0": [(DYNAMO, 0.0, 1.0), (RUN, 1.0, 6.0)], "rank 1": [(DYNAMO, 0.0, 6.0)]}
    summary = drawn.waterfall(lanes, "shm · cpu").summary
    assert "“Dynamo” takes the largest part: 100% of the time of rank 1" in summary
    assert "rank 0: 6.0 s: Dynamo 1.0 s, run, or wait for a peer 5.0 s" in summary


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"form": ["lukewarm"]}, "unknown form 'lukewarm': there is eager, cold"),
        ({"requests": 3}, "requests must be a whole number from 4 to 100000, got 3"),
        ({"rounds": 0}, "from 1 to 100, got 0"),
        ({"budget": -1.0}, "budget must be a positive number of seconds, got -1.0"),
        ({"form": ["AOTInductor"]}, "AOTInductor cannot be served on gloo"),
    ],
)
def test_bad_asks_are_refused_before_any_rank_is_asked(ranks, tmp_path, arguments, said):
    calls = ranks.calls
    with pytest.raises(ValueError) as caught:
        cold.run(ranks, folder=tmp_path, **arguments)
    assert said in str(caught.value) and ranks.calls == calls and not list(tmp_path.iterdir())
    for ask, words in (
        ({"kind": ["tape"]}, "unknown kind 'tape'"),
        ({"change": ["mood"]}, "unknown change 'mood'"),
    ):
        with pytest.raises(ValueError, match=words):
            survival.run(ranks, folder=tmp_path, **ask)


@pytest.mark.slow
def test_caches_miss_where_the_program_is_another_and_what_is_compiled_ahead_goes_wrong_or_is_refused(
    ranks, tmp_path
):
    kinds, changes = [DISK, ARTIFACTS, AOT], ["nothing", "shape", "code", "version string"]
    report = survival.run(ranks, kinds, changes, folder=tmp_path)
    found = report.frame.pivot(index="change", columns="kind", values="outcome")
    assert list(found.loc["nothing", kinds]) == ["hit", "hit", "hit"]
    assert list(found.loc["shape", kinds]) == ["miss", "miss", "refused"]
    assert list(found.loc["code", kinds]) == ["miss", "miss", "wrong"]
    assert list(found.loc["version string", kinds]) == ["miss", "miss", "refused"]
    said = report.frame.set_index(["kind", "change"])["said"]
    assert "expected 4, actual 6" in said[AOT, "shape"]
    assert "different PyTorch version" in said[AOT, "version string"]
    assert "Wrong in silence: aot_compile after a change of code" in report.figure().summary
    assert not list(tmp_path.iterdir()), "what was made goes with the sweep"


def test_a_matrix_without_a_wrong_cell_says_so():
    cells = pd.DataFrame([{"kind": DISK, "change": "shape", "outcome": "miss"}])
    summary = drawn.survived(cells, "gloo · cpu").summary
    assert "Nothing went wrong in silence" in summary and "second process: shape miss" in summary


@pytest.mark.slow
def test_eager_needs_no_compiler_and_an_interrupt_loses_no_point(shm_ranks, tmp_path, monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    with monkeypatch.context() as inside:
        inside.setattr(cold, "Ranks", type("Ranks", (Ranks,), {"__init__": interrupted}))
        inside.setattr(cold, "_check", lambda ranks: None)
        with pytest.raises(KeyboardInterrupt):
            cold.run(shm_ranks, ["eager"], requests=4, folder=tmp_path)
    report = cold.run(shm_ranks, ["eager"], requests=4, folder=tmp_path)
    assert report.provenance["resumed"] == 1 and "1 points are from before" in report.notes[-1]
    assert list(report.tables["samples"]["builds"]) == [0, 0] and len(report.tables["latency"]) == 8
    assert set(report.tables["spans"]["phase"]) <= {LOAD, RUN}


# --- the warmup's budget and preparation ---


def late(exchange: contract.Exchange, seconds: float, budget: float | None) -> contract.Warm:
    import time

    return contract.warm_up(
        exchange, lambda: None, prepare=lambda: time.sleep(seconds * exchange.rank), budget=budget
    )


def test_who_is_late_is_waited_for_in_preparing_and_a_budget_ends_it_on_all_ranks():
    first, second = contract.rehearse(2, lambda ex: late(ex, 0.3, None))
    assert first.prepared == second.prepared and first.skew >= 0.29 and first.total >= 0.3
    for error in contract.rehearse(2, lambda ex: late(ex, 0.3, 0.1)):
        assert isinstance(error, contract.OverBudget) and "rank 1 took longest" in str(error)
    with pytest.raises(ValueError, match="budget must be a positive number"):
        raise contract.rehearse(1, lambda ex: late(ex, 0, 0.0))[0]


def _ship(size: int) -> bool:
    import torch.distributed as dist

    data = bytes(range(256)) * size
    return program.ship(data if dist.get_rank() == 0 else b"") == data


def test_bytes_reach_every_rank(shm_ranks):
    assert shm_ranks.run(_ship, 100).same() and shm_ranks.run(_ship, 0).same()
