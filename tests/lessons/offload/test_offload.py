"""The real offloading passes, the model of time and memory made of their graphs, and what is reported on a GPU."""

from __future__ import annotations

import functools

import lesson_cells
import pandas as pd
import pytest
from oddrank.live.failure import Outcome

from course.offload.offload import OffloadGraphs, OffloadNode, Rates, model_times, step, trace
from course.shared.streams import StreamError, ops, simulate
from labkit import RankError, Ranks, Report, hardware, lessons, timing

torch = pytest.importorskip("torch")
LESSON = "07b_activation_offloading"
KEPT, IN_LINE, AT_ONCE, AT_THE_END = "kept", "in line", "waits at once", "waits at the end"


@functools.cache
def program():
    return lessons.program("offload")


def test_bad_input_is_named():
    with pytest.raises(StreamError, match="no way is called 'x'; there is kept, in line"):
        trace(program().Shape(), ["x"])
    with pytest.raises(StreamError, match="link_gbytes must be a number above 0, got -1"):
        Rates(link_gbytes=-1)
    with pytest.raises(ValueError, match="no way to compare"):
        model_times({})


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
def test_in_line_is_as_slow_as_waits_at_once_and_a_fast_link_costs_nothing():
    graphs = trace(program().Shape(layers=2))
    assert (
        list(graphs) == list(program().WAYS) and [n.word for n in graphs[IN_LINE].forward].count("copy") == 3
    )
    assert not any(simulate(step(one)).races for one in graphs.values())
    table = model_times(graphs)
    assert table.loc[AT_ONCE, "step_ms"] == pytest.approx(table.loc[IN_LINE, "step_ms"])
    slow, fast = (
        model_times(graphs, Rates(link_gbytes=g)).loc[AT_THE_END, "slower_percent"] for g in (20, 400)
    )
    assert slow > fast and abs(fast) < 1


def reported(ranks, tmp_path, shapes):
    """Run the cell that reports the steps of some shapes: its report, and the table of it as saved and read again."""
    made = []

    def report(*args, **kwargs):
        made.append(Report(*args, **kwargs))
        return made[-1]

    code = program()
    names = lesson_cells.run(LESSON, "cell-51-adc39034", **vars(code))
    steps = {name: code.Shape(layers=2) for name in shapes}
    names |= {
        "pd": pd,
        "Times": timing.Times,
        "RankError": RankError,
        "Report": report,
        "rates": Rates(),
        "ROUNDS": 9,
    }
    cell = "cell-52-b408664a"
    lesson_cells.run(LESSON, cell, ranks=ranks, steps=steps, tables={}, **names)
    again = Report.load(made[0].save(tmp_path))
    return made[0], again.frame.set_index(["shape", "way"])


class OnGpu:
    """A rank that says to have a GPU, and what it says to have measured."""

    device, label = "cuda", "gloo · 1 gpu"

    def run(self, measured, step, ways, rounds, timeout):
        if not self.steps.pop(0):
            lack = Outcome(0, "error", "OutOfMemoryError", "CUDA out of memory")
            raise RankError("rank 0 raised OutOfMemoryError", [lack], ended="raised")
        seconds = {way: 0.1 * (1 + i / 4) for i, way in enumerate(ways)}
        peaks = {way: 1000.0 - 100 * i for i, way in enumerate(ways)}
        return [(timing.Times({way: [s] * rounds for way, s in seconds.items()}), peaks)]


def test_with_a_gpu_the_lesson_reports_what_was_measured(tmp_path):
    ranks = OnGpu()
    ranks.steps = ["fits", ""]
    report, shown = reported(ranks, tmp_path, ["Small", "XL"])
    assert report.label == ranks.label and report.notes == ["XL does not fit into the GPU's memory"]
    assert [(v.a, v.b, v.outcome, v.n, v.evidence) for v in report.verdicts] == [
        (way, KEPT, "slower", 9, "Small, gloo · 1 gpu") for way in (IN_LINE, AT_ONCE, AT_THE_END)
    ]
    found = shown.loc[("Small", AT_ONCE)]
    assert found["slower_percent"] == pytest.approx(50) and found["saved_percent"] == pytest.approx(20)


@pytest.mark.gpu
def test_on_a_gpu_the_step_and_its_peak_are_measured(tmp_path):
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    with Ranks(1, device="cuda", timeout=600, quiet=True) as ranks:
        report, shown = reported(ranks, tmp_path, ["Small"])
        assert report.label == ranks.label
    table = shown.loc["Small"]
    assert list(table.index) == list(program().WAYS) and len(report.verdicts) == 3
    assert (table["step_ms"] > 0).all() and (table["peak_mib"] > 500).all()
    assert table.loc[KEPT, ["saved_percent", "slower_percent"]].eq(0).all()
    # what leaves at once is back before the peak of the backward pass only in part
    assert table.loc[AT_ONCE, "peak_mib"] < table.loc[KEPT, "peak_mib"]


@pytest.mark.gpu
def test_on_a_gpu_the_gradients_do_not_depend_on_where_activations_wait():
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    from course.offload.exercises import _program, _run_on_gpu

    shape = program().Shape(width=256, layers=2, batch=4, sequence=128)
    with Ranks(1, device="cuda", timeout=600, quiet=True) as ranks:
        found = [
            ranks.run(_run_on_gpu, _program(), shape, way, None)[0] for way in (KEPT, AT_ONCE, AT_THE_END)
        ]
    assert found[1][2] == pytest.approx(found[0][2], rel=1e-2)
    assert found[2][2] == pytest.approx(found[0][2], rel=1e-2)
