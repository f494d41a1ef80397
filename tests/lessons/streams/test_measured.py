"""What lesson 06 measures: the reports of its cells may take the place of the recorded ones, with a GPU and without."""

from __future__ import annotations

import functools
import time
import types

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import labkit
from labkit import Report, hardware, lessons, timing

LESSON = "06_streams_and_events"
SMALL = {"RANKS": 2, "SIZE": 64, "MIB": 1, "PARTS": 2, "ROUNDS": 8}
NAMES = {
    "torch": torch,
    "dist": dist,
    "pd": pd,
    "timing": timing,
    "Times": timing.Times,
    "partial": functools.partial,
    "labkit": labkit,
}


def run(*ids, **names):
    """Run cells of the lesson at small sizes; returns the reports that they made, and all names."""
    made = []

    def report(*args, **kwargs):
        made.append(Report(*args, **kwargs))
        return made[-1]

    program = lessons.program("streams")
    code = {name: getattr(program, name) for name in program.__program__}
    space = lesson_cells.run(LESSON, *ids, **{**NAMES, **code, **SMALL, "Report": report, **names})
    return made, space


def loads(report, tmp_path, cell):
    """Run the cell that shows a recorded report with this one saved in its place."""
    report.provenance["hardware"] = "this machine"
    saved = report.save(tmp_path)
    files = types.SimpleNamespace(ours=lambda path: saved if path.endswith(f"/{saved.name}") else None)
    return lesson_cells.run(LESSON, cell, Report=Report, files=files)["h100"]


@pytest.fixture(scope="module")
def steps():
    """The cell with `step_times` and `summary`."""
    return run("streams-steps")[1]


def test_steps_are_compared_with_the_first_way(steps):
    samples = pd.DataFrame(
        {
            "variant": ["a"] * 4 + ["b"] * 4,
            "round": [0, 1] * 4,
            "rank": [0, 0, 1, 1] * 2,
            "seconds": [0.1, 0.1, 0.2, 0.2, 0.4, 0.4, 0.3, 0.3],
            "peak": [50.0] * 4 + [75.0] * 4,
        }
    )
    table = steps["summary"](samples).set_index("way")
    assert table["step"].tolist() == [200, 400]  # by the slower rank
    assert table["overhead_percent"].tolist() == [0, 100] and table["peak_percent"].tolist() == [0, 50]
    assert "peak" not in steps["summary"](samples.assign(peak=float("nan")))


def test_ways_with_other_results_are_not_compared(steps):
    ways = {"one": lambda: torch.ones(2), "other": lambda: torch.zeros(2)}
    with pytest.raises(AssertionError):
        steps["step_times"](ways, 8)


def test_the_report_of_a_gpu_is_what_the_lesson_loads(steps, tmp_path, capsys):
    """The cell's branch for a GPU, with tensors on the CPU and stated peaks."""
    shown = []
    fake = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: True),
        full=lambda *size, device: torch.full(*size),
    )

    def step_times(ways, rounds):
        samples = steps["step_times"](ways, rounds)
        return samples.assign(peak=samples["variant"].map(dict(zip(ways, (52.0, 116.0, 180.0), strict=True))))

    def one_thread(fn):  # torch's streams need an accelerator
        return functools.wraps(fn)(lambda x: (x @ x @ x) + ((x + 1) @ x @ x))

    names = {
        name: one_thread(getattr(lessons.program("streams"), name)) for name in ("two_streams", "host_waits")
    }
    stubs = {"display": shown.append, "timeline": dict, "on_gpu": lambda fn, x: fn(x)}
    (report,), _ = run(
        "streams-gpu", torch=fake, step_times=step_times, summary=steps["summary"], **names, **stubs
    )
    assert report is shown[0] and len(shown[1]) == 2
    assert (report.name, report.label) == ("streams", "cuda · 1 gpu")
    assert [(v.a, v.b, v.n) for v in report.verdicts] == [
        ("two_streams", "one_stream", 8),
        ("host_waits", "one_stream", 8),
    ]
    found = loads(report, tmp_path, "streams-h100")
    assert found.tables["summary"]["peak_percent"].tolist() == [0, 123.08, 246.15]
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.slow
def test_the_ranks_report_with_and_without_a_late_one(ranks, tmp_path):
    cells = ("streams-hidden", "streams-measure", "streams-measured", "streams-steps", "streams-verdicts")
    cells += ("streams-micro-measure", "streams-micro-measured")
    names = {"time": time, "ranks": ranks, "simulate": lambda _: types.SimpleNamespace(makespan=1)}
    names |= {"capture": lambda *args, **kwargs: None, "g": None, "x": None}
    (overlap, microbatch), _ = run(*cells, **names)
    assert overlap.name == "overlap" and len(overlap.frame) == 4 and len(overlap.verdicts) == 2
    assert list(microbatch.frame["case"]) == ["nobody late"] * 2 + ["in turn 10 ms late"] * 2
    assert list(microbatch.frame["way"]) == ["part_by_part", "overlapped"] * 2
    late = microbatch.frame.set_index(["case", "way"])["step"]["in turn 10 ms late"]
    assert late["part_by_part"] > 20  # both parts wait for whoever is late
    assert [(v.a, v.b, v.evidence) for v in microbatch.verdicts] == [
        ("overlapped", "part_by_part", f"{ranks.label}, {case}")
        for case in ("nobody late", "in turn 10 ms late")
    ]
    found = loads(microbatch, tmp_path, "streams-micro-h100")
    assert found.verdicts[0].evidence.endswith("nobody late")


@pytest.mark.gpu
def test_a_gpu_gives_times_and_memory(steps):
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    from course.streams.cuda import on_gpu

    stubs = {"display": lambda shown: None, "timeline": dict, "on_gpu": on_gpu}
    (report,), _ = run(
        "streams-gpu", **{"SIZE": 512, **stubs, **{n: steps[n] for n in ("step_times", "summary")}}
    )
    assert len(report.frame) == 3 and (report.frame[["step", "peak"]] > 0).all(axis=None)


@pytest.mark.gpu
def test_ranks_on_gpus_report_memory(steps):
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    program = lessons.program("streams")
    given = {n: steps[n] for n in ("step_times", "summary")}
    _, space = run("streams-micro-measure", **given)
    ways = (program.part_by_part, program.overlapped)
    with labkit.Ranks(2, device="cuda", timeout=120, quiet=True) as ranks:
        samples = ranks.run(space["measure_microbatches"], ways, 0.0, 512, 4, 8).frame()
    assert set(samples["rank"]) == {0, 1}
    assert (steps["summary"](samples)[["step", "peak"]] > 0).all(axis=None)
