"""Lesson 07b from top to bottom: where the waits stand, and what the model says of time and memory."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

from labkit import hardware

LESSON = "07b_activation_offloading"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]
modelled = pytest.mark.skipif(bool(hardware.gpus()), reason="on a GPU the lesson reports what it measured")


def test_each_copy_is_waited_for_at_once_or_at_the_end(run):
    sums = 2 * run.values["LAYERS"] - 1  # two of each layer, but for the last
    at_once, at_the_end = re.findall(r"^ +(matmul .*\w)", run.text("cell-40-a674a3d3"), re.MULTILINE)
    assert at_once.count("offload wait") == at_once.count("offload") == at_once.count("wait") == sums
    before = at_the_end.removesuffix(" wait" * sums)
    assert before != at_the_end and "wait" not in before and before.count("offload") == sums


@modelled
def test_the_model_trades_time_for_memory(run):
    summary = run.table("offload", "summary").set_index(["shape", "way"])
    ways = ["kept", "waits at once", "waits at the end"]
    assert list(summary.index) == [(shape, way) for shape in run.values["SHAPES"] for way in ways]
    for shape in run.values["SHAPES"]:
        kept, at_once, at_the_end = (summary.loc[shape, way] for way in ways)
        assert kept["slower_percent"] == kept["saved_percent"] == 0
        assert 0 < at_the_end["slower_percent"] < at_once["slower_percent"]
        assert 0 < at_the_end["saved_percent"] < at_once["saved_percent"]
        assert at_once["hidden_percent"] == 0 < at_the_end["hidden_percent"]
    # a sum of (tokens, width) in bfloat16 has 64 MiB
    small = summary.loc["Small", "peak_mib"]
    sums = 2 * run.values["LAYERS"] - 1
    assert small["kept"] - small["waits at once"] == pytest.approx(64 * sums)


@modelled
def test_without_a_gpu_the_report_says_that_it_is_modelled(run):
    report = run.reports["offload"]
    assert report.label == "modelled" and not report.verdicts
    assert report.notes[0].startswith("not measured: it takes a GPU")
