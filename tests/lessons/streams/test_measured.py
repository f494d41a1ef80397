"""What lesson 06 measures where its run does not: without a link, with a late rank, on a GPU; and gloo's threads."""

from __future__ import annotations

import functools
import json
import tempfile
import time
import types
from pathlib import Path

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import labkit
from course.shared.streams import simulate
from course.streams.capture import capture
from course.streams.measure import step_times, summary
from labkit import Report, hardware, lessons, timing
from labkit.ranks.output import quiet_stderr

LESSON = "06_streams_and_events"
SMALL = {"RANKS": 2, "SIZE": 64, "PARTS": 2, "LINK": 20, "ROUNDS": 8, "ROWS": 64, "INNER": 64, "COLUMNS": 16}
NAMES = {
    "torch": torch,
    "dist": dist,
    "pd": pd,
    "Times": timing.Times,
    "partial": functools.partial,
    "labkit": labkit,
    "step_times": step_times,
    "summary": summary,
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


def test_steps_are_compared_with_the_first_way():
    samples = pd.DataFrame(
        {
            "variant": ["a"] * 4 + ["b"] * 4,
            "round": [0, 1] * 4,
            "rank": [0, 0, 1, 1] * 2,
            "seconds": [0.1, 0.1, 0.2, 0.2, 0.4, 0.4, 0.3, 0.3],
            "peak": [50.0] * 4 + [75.0] * 4,
        }
    )
    table = summary(samples).set_index("way")
    assert table["step"].tolist() == [200, 400]  # by the slower rank
    assert table["overhead_percent"].tolist() == [0, 100] and table["peak_percent"].tolist() == [0, 50]
    assert "peak" not in summary(samples.assign(peak=float("nan")))


def test_ways_with_other_results_are_not_compared():
    ways = {"one": lambda: torch.ones(2), "other": lambda: torch.zeros(2)}
    with pytest.raises(ValueError, match="other returns other numbers"):
        step_times(ways, 8)
    samples = step_times({"one": ways["one"]}, 8, alone={"part": ways["other"]})
    assert set(samples["variant"]) == {"one", "part"}


def test_the_report_of_a_gpu_is_saved_and_loaded(tmp_path, capsys):
    """The cell's branch for a GPU, with tensors on the CPU and stated peaks."""
    shown = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.at = 0.0

        def record(self):
            self.at = time.perf_counter()

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    fake = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: True, Event=Event),
        full=lambda *size, device: torch.full(*size),
    )

    def with_peaks(ways, rounds):
        samples = step_times(ways, rounds)
        return samples.assign(peak=samples["variant"].map(dict(zip(ways, (52.0, 116.0), strict=True))))

    def two_streams(x):  # torch's streams need an accelerator
        return (x @ x @ x) + ((x + 1) @ x @ x)

    stubs = {"display": shown.append, "timeline": dict, "on_gpu": lambda fn, x: fn(x)}
    names = {"torch": fake, "step_times": with_peaks, "two_streams": two_streams, **stubs}
    (report,), _ = run("streams-gpu", **names)
    assert report is shown[0] and len(shown[1]) == 2 and "ms by events" in capsys.readouterr().out
    assert (report.name, report.label) == ("streams", "cuda · 1 gpu")
    assert [(v.a, v.b, v.n) for v in report.verdicts] == [("two_streams", "one_stream", 8)]
    loaded = Report.load(report.save(tmp_path))
    assert loaded.tables["summary"]["peak_percent"].tolist() == [0, 123.08]


def over_a_link(link, late):
    """On a rank: what both ways return, and how long they took, the last rank being late."""
    program = lessons.program("streams")
    me = labkit.ranks.here()
    x, weight = torch.full((9, 4), me.rank + 1.0), torch.ones(4, 3)
    took, sums = {}, {}
    queue = program.Link(link)
    for way in (program.part_by_part, program.overlapped):
        dist.barrier()
        begin = time.perf_counter()
        if me.rank == me.world_size - 1:
            time.sleep(late)
        sums[way.__name__] = way(x, weight, 3, queue.all_reduce)
        took[way.__name__] = time.perf_counter() - begin
    return sums, took


@pytest.mark.slow
def test_without_a_link_both_ways_are_timed_and_modelled(ranks):
    names = {"ranks": ranks, "hardware": types.SimpleNamespace(gpus=lambda: []), "LINK": 0}
    names |= {"capture": capture, "simulate": simulate, "x": torch.ones(4, 4)}
    (report,), space = run("streams-micro-measure", "streams-micro-measured", "streams-micro-model", **names)
    assert list(report.frame["way"]) == list(space["model"]) == ["part_by_part", "overlapped"]
    assert report.verdicts[0].evidence == f"{ranks.label}, no link"


@pytest.mark.slow
def test_a_sum_travels_from_the_latest_ranks_entry_and_sums_are_right(ranks):
    link, late = 0.1, 0.3
    right = torch.full((9, 3), 4.0 * sum(range(1, len(ranks) + 1)))
    for sums, took in ranks.run(over_a_link, link, late, timeout=60).values():
        assert all(torch.equal(total, right) for total in sums.values())
        assert min(took.values()) >= late + 3 * link - 0.01


@pytest.mark.slow
def test_gloos_sums_are_on_threads_of_their_own(ranks):
    shown = []
    names = {"ranks": ranks, "json": json, "tempfile": tempfile, "Path": Path, "quiet_stderr": quiet_stderr}
    names |= {"bars": lambda *given: given, "timeline": lambda run, title: run, "display": shown.append}
    _, space = run("streams-gloo", **names)
    assert len(shown) == 1 and (space["waits"] >= 0).all(axis=None)
    seen = space["seen"]
    assert set(seen["rank"]) == {0, 1}
    assert set(seen.loc[seen["kind"] == "compute", "lane"]) == {"python"}
    sums = seen[seen["kind"] == "collective"]
    assert len(sums) == 2 * SMALL["PARTS"] and all(lane.startswith("gloo ") for lane in sums["lane"])


@pytest.mark.gpu
def test_a_gpu_gives_times_and_memory():
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    from course.streams.cuda import on_gpu

    stubs = {"display": lambda shown: None, "timeline": dict, "on_gpu": on_gpu}
    (report,), _ = run("streams-gpu", **{"SIZE": 512, **stubs})
    assert len(report.frame) == 2 and (report.frame[["step", "peak"]] > 0).all(axis=None)


@pytest.mark.gpu
def test_ranks_on_gpus_report_memory():
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    program = lessons.program("streams")
    _, space = run("streams-micro-measure")
    ways = (program.part_by_part, program.overlapped)
    with labkit.Ranks(2, device="cuda", timeout=120, quiet=True) as ranks:
        samples = ranks.run(space["measure_microbatches"], ways, (512,) * 3, 4, 8, 0).frame()
    whole = samples[samples["variant"].isin(["part_by_part", "overlapped"])]
    assert set(samples["rank"]) == {0, 1} and (summary(whole)[["step", "peak"]] > 0).all(axis=None)
