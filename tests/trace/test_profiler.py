"""The real profiler: raw events on the epoch's clock, one at a time, silent."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from labkit.trace import Profile


def test_raw_events_are_on_the_epochs_clock():
    profile = Profile()
    profile.start()
    before = time.time_ns()
    torch.ones(8).sum()
    after = time.time_ns()
    found = [e for e in profile.stop() if e.name == "aten::sum"]
    # other machines' tests share this clock: 50 ms is far above its error and far below a wrong epoch
    assert before - 50_000_000 < found[0].start <= found[0].end < after + 50_000_000


def test_shapes_are_kept_when_asked_for():
    profile = Profile(shapes=True)
    profile.start()
    torch.ones(2, 3) @ torch.ones(3, 4)
    assert [e.shapes for e in profile.stop() if e.name == "aten::mm"] == ["2x3, 3x4"]


def test_a_second_profiler_is_refused_and_the_first_one_keeps_its_events():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as outer:
        with pytest.raises(ValueError, match="already running"):
            Profile().start()
        torch.ones(3).sum()
    assert any(event.name == "aten::sum" for event in outer.events())


@pytest.mark.slow
def test_the_profiler_writes_nothing_to_stderr():
    code = (
        "import torch\nfrom labkit.trace import Profile\np = Profile(); p.start(); torch.ones(2) + 1\n"
        "print(len(p.stop()) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True"
    assert "profiler_start" not in done.stderr


@pytest.mark.gpu
def test_kernels_of_a_gpu_are_recorded_on_their_stream():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    x = torch.ones(64, 64, device="cuda")
    profile = Profile()
    profile.start()
    x @ x
    kernels = [e for e in profile.stop() if e.stream >= 0]
    assert kernels and all(e.end > e.start for e in kernels)
