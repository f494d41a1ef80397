"""Cold and warm: what is found, built, refused and wrong in fresh processes, and how the ways are drawn."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest
import torch.distributed as dist

from course.cold import figures as drawn
from course.cold.phases import CHECK, CPP, DYNAMO, INDUCTOR, LOAD, RUN, segments
from labkit import Ranks, contract, lessons

program = lessons.program("cold")


def fresh(function, *arguments, world_size=2):
    with Ranks(world_size, device="cpu", backend="shm", quiet=True, timeout=300) as new:
        return new.run(function, *arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which `machine` holds the libraries that try out the CPU's instructions."""
    folder = tmp_path_factory.mktemp("cold")
    fresh(program.check_cpu, folder)
    return folder


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


def cold(place):
    found = program.serve(program.compiled, place, requests=4)
    program.leave(place)
    return found


@pytest.mark.slow
def test_the_check_of_cpu_instructions_is_a_phase_of_its_own_and_not_inductors(place, monkeypatch):
    # with it, Inductor tries AMX and VNNI only, which not every CPU has
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK", raising=False)
    first = fresh(cold, place)
    second = fresh(program.serve, program.compiled, place, "caches")
    for found in (
        *first.values(),
        *second.values(),
    ):  # paid in every process, also in one that finds its caches
        phases = {phase for phase, _, _ in found["spans"]}
        assert CHECK in phases and found["check_s"] > 0 and found["error"] < 1e-4
    assert all(one["builds"] and not one["hit"] and len(one["latency"]) == 4 for one in first.values())
    assert all(not one["builds"] and one["hit"] == 2 and not one["miss"] for one in second.values())
    assert all(INDUCTOR in {phase for phase, _, _ in one["spans"]} for one in first.values())


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


def test_each_picture_says_what_it_shows():
    lanes = {"rank 0": [(DYNAMO, 0.0, 1.0), (RUN, 1.0, 6.0)], "rank 1": [(DYNAMO, 0.0, 6.0)]}
    summary = drawn.waterfall(lanes, "shm · cpu").summary
    assert "“Dynamo” takes the largest part: 100% of the time of rank 1" in summary
    assert "rank 0: 6.0 s: Dynamo 1.0 s, run, or wait for a peer 5.0 s" in summary


def used(change, place):
    """On a rank of three: what becomes of its kind of artifact after a change."""
    kind = list(program.KINDS)[dist.get_rank()]
    return (kind, change, *program.use(kind, change, place))


@pytest.mark.slow
def test_caches_miss_where_the_program_is_another_and_what_is_compiled_ahead_goes_wrong_or_is_refused(place):
    products = place / "products"
    shutil.copytree(place / "machine", products / "machine")
    fresh(program.leave_products, products)
    changes = ["nothing", "shape", "code", "version string"]
    rows = [row for change in changes for row in fresh(used, change, products, world_size=3).values()]
    found = {(change, kind): (outcome, said) for kind, change, outcome, said in rows}
    outcomes = {change: [found[change, kind][0] for kind in list(program.KINDS)[:3]] for change in changes}
    assert outcomes == {
        "nothing": ["hit", "hit", "hit"],
        "shape": ["miss", "miss", "refused"],
        "code": ["miss", "miss", "wrong"],
        "version string": ["miss", "miss", "refused"],
    }
    assert "expected 4, actual 6" in found["shape", "aot_compile"][1]
    assert "different PyTorch version" in found["version string", "aot_compile"][1]
    table = pd.DataFrame(rows, columns=["kind", "change", "outcome", "said"])
    said = drawn.survival(table, "shm · cpu").summary
    assert "Wrong in silence: aot_compile after a change of code" in said


def test_a_matrix_without_a_wrong_cell_says_so():
    cells = pd.DataFrame([{"kind": "second process", "change": "shape", "outcome": "miss"}])
    summary = drawn.survival(cells, "gloo · cpu").summary
    assert "Nothing went wrong in silence" in summary and "second process: shape miss" in summary


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
    data = bytes(range(256)) * size
    return program.ship(data if dist.get_rank() == 0 else b"") == data


def test_bytes_reach_every_rank(shm_ranks):
    assert shm_ranks.run(_ship, 100).same() and shm_ranks.run(_ship, 0).same()
