"""The real offloading passes, the model of time and memory that is made of their graphs, and the experiment."""

from __future__ import annotations

import functools

import pytest

from course.compiled_streams import experiment
from course.compiled_streams.offload import OffloadGraphs, OffloadNode, Rates, modelled, step, traced
from course.shared.streams import StreamError, ops, simulate
from labkit import Ranks, Report, hardware, lessons

torch = pytest.importorskip("torch")
KEPT, IN_LINE, AT_ONCE, AT_THE_END = "kept", "in line", "waits at once", "waits at the end"


@functools.cache
def program():
    return lessons.program("compiled_streams")


@pytest.fixture(scope="module")
def graphs():
    return traced(program().Shape(layers=2))


def test_bad_input_is_named():
    with pytest.raises(StreamError, match="no way is called 'x'; there is kept, in line"):
        traced(program().Shape(), ["x"])
    with pytest.raises(StreamError, match="link_gbytes must be a number above 0, got -1"):
        Rates(link_gbytes=-1)
    with pytest.raises(ValueError, match="no way to compare"):
        modelled({})
    with pytest.raises(ValueError, match="there is no shape 'Huge': there is Small, Med, XL"):
        experiment.run(None, ["Huge"])


def test_a_step_by_hand():
    # 2 GB over 1 GB/s takes 2000 ms; the kernel's 1e12 flops at 1 Tflop/s take 1000
    mib = 2**20
    forward = (
        OffloadNode("x", "input", "", (), mib),
        OffloadNode("mm", "kernel", "mm", ("x",), 2 * mib, 10**12),
        OffloadNode("away", "offload", "offload", ("mm",), moved=2 * 10**9),
        OffloadNode("wait", "wait", "wait", ("away", "mm"), of="away"),
    )
    program = step(OffloadGraphs("by hand", forward, (), ()), Rates(1.0, 1.0, 1.0))
    run = simulate(program)
    assert run.makespan == pytest.approx(3000) and run.peak == pytest.approx(3) and not run.races
    freed = [op.buffer for op in program if isinstance(op, ops.Free)]
    assert freed == ["mm"] and str(list(program)[-2]).startswith("wait('away'")  # behind its wait


@pytest.mark.slow
def test_the_ways_do_what_they_are_called(graphs):
    words = {
        way: [n.word for n in one.forward if n.word not in ("view", "input")] for way, one in graphs.items()
    }
    assert {"copy", "offload", "wait"}.isdisjoint(words[KEPT])
    assert words[IN_LINE].count("copy") == 3 and words[AT_ONCE].count("offload") == 3
    assert words[AT_ONCE][words[AT_ONCE].index("offload") + 1] == "wait"
    assert words[AT_THE_END][words[AT_THE_END].index("offload") + 1] != "wait"
    assert words[AT_THE_END][-3:] == ["wait"] * 3


@pytest.mark.slow
def test_the_model_trades_time_for_memory_and_has_no_race(graphs):
    assert not any(simulate(step(one)).races for one in graphs.values())
    table = modelled(graphs)
    assert table.loc[AT_ONCE, "step_ms"] == pytest.approx(table.loc[IN_LINE, "step_ms"])
    assert 0 < table.loc[AT_THE_END, "slower_percent"] < table.loc[AT_ONCE, "slower_percent"]
    assert 0 < table.loc[AT_THE_END, "saved_percent"] < table.loc[AT_ONCE, "saved_percent"]
    # two values of (tokens, width) in bfloat16 are 64 MiB each: the first three of four sums are offloaded
    assert table.loc[KEPT, "peak_mib"] - table.loc[AT_ONCE, "peak_mib"] == pytest.approx(3 * 64)
    slow, fast = (modelled(graphs, Rates(link_gbytes=g)).loc[AT_THE_END, "slower_percent"] for g in (20, 400))
    assert slow > fast and abs(fast) < 1


@pytest.mark.slow
def test_a_schedule_may_move_nodes_and_not_break_the_graph():
    def reversed_wait(forward, backward):
        next(iter(forward.nodes)).append(next(n for n in forward.nodes if n.name.startswith("cpu_offload")))

    shape = program().Shape(width=64, layers=1, batch=1, sequence=16)
    with pytest.raises(Exception, match="used before it has been defined"):
        traced(shape, [AT_ONCE], schedule=reversed_wait)


@pytest.mark.slow
def test_without_a_gpu_the_experiment_models_and_says_what_it_needs(tmp_path):
    with Ranks(1, device="cpu", backend="gloo", quiet=True) as ranks:
        report = experiment.run(ranks, ["Small"], deep=1)
    assert report.label == "modelled" and not report.verdicts
    assert any("measuring takes an NVIDIA GPU" in note for note in report.notes)
    table = report.tables["summary"]
    assert list(table["way"]) == list(program().WAYS) and (table["step_ms"] > 0).all()
    assert list(report.tables["slides"]["runtime_overhead_percent"]) == [9.0, 4.2, 0.1]
    again = Report.load(report.save(tmp_path / "offload.json"))
    assert again.label == "modelled" and list(again.tables["summary"]["way"]) == list(table["way"])


def test_what_was_measured_is_compared_with_the_way_that_keeps_everything():
    from labkit.timing import Measurement, samples

    taken = {KEPT: Measurement(KEPT, (0.1,) * 9), AT_ONCE: Measurement(AT_ONCE, (0.125,) * 9)}
    rows = samples(taken).assign(rank=0)
    found = experiment._measured(rows, {KEPT: 1000.0, AT_ONCE: 900.0}).set_index("way").loc[AT_ONCE]
    assert found["slower_percent"] == pytest.approx(25) and found["saved_percent"] == pytest.approx(10)
    (verdict,) = experiment._verdicts(rows, "Small", "nccl")
    assert (verdict.a, verdict.b, verdict.outcome) == (AT_ONCE, KEPT, "slower")


@pytest.mark.gpu
def test_on_a_gpu_the_step_and_its_peak_are_measured():
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    with Ranks(1, device="cuda", timeout=600, quiet=True) as ranks:
        report = experiment.run(ranks, ["Small"], deep=2, rounds=9)
    table = report.tables["summary"].set_index("way")
    assert list(table.index) == list(program().WAYS) and report.label == ranks.label != "modelled"
    assert (table["step_ms"] > 0).all() and (table["peak_mib"] > 500).all()
    assert table.loc[KEPT, ["saved_percent", "slower_percent"]].eq(0).all()
    # what leaves at once is back before the peak of the backward pass only in part
    assert table.loc[AT_ONCE, "peak_mib"] < table.loc[KEPT, "peak_mib"]
    assert len(report.tables["samples"]) == 9 * len(table) and len(report.verdicts) == 3


@pytest.mark.gpu
def test_on_a_gpu_the_gradients_do_not_depend_on_where_activations_wait():
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    from course.compiled_streams.exercises import _program, _run_on_gpu

    shape = program().Shape(width=256, layers=2, batch=4, sequence=128)
    with Ranks(1, device="cuda", timeout=600, quiet=True) as ranks:
        found = [
            ranks.run(_run_on_gpu, _program(), shape, way, None)[0] for way in (KEPT, AT_ONCE, AT_THE_END)
        ]
    assert found[1][2] == pytest.approx(found[0][2], rel=1e-2)
    assert found[2][2] == pytest.approx(found[0][2], rel=1e-2)
