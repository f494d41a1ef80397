"""The real profiler: raw events on the monotonic clock, one at a time, silent."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import torch
from oddrank.record import record
from oddrank.record.profile import _CUDA_CALL, Profile, collectives_end

from oddrank import torch_names


def test_raw_events_are_on_the_monotonic_clock():
    profile = Profile()
    profile.start()
    before = time.monotonic_ns()
    torch.ones(8).sum()
    after = time.monotonic_ns()
    found = [e for e in profile.stop() if e.name == "aten::sum"]
    # 5 ms is far above the error of the conversion and far below the distance of two clocks
    assert before - 5_000_000 < found[0].start <= found[0].end < after + 5_000_000


class _Turned:
    """A raw event as kineto gives it where the clock was set back: lengths would be negative, so there are none."""

    def __init__(self, event):
        self._event = event

    def __getattr__(self, name):
        return getattr(self._event, name)

    def start_ns(self):
        return -self._event.start_ns()

    def duration_ns(self):
        return 0


def test_a_clock_set_back_by_more_than_the_record_is_said(monkeypatch):
    plain = torch_names.profiler_events
    monkeypatch.setattr(
        torch_names, "profiler_events", lambda profiler: [_Turned(e) for e in plain(profiler)]
    )
    with record() as rec:
        before = time.monotonic_ns()
        torch.ones(8).sum()
        after = time.monotonic_ns()
    assert "was set back" in rec.notes[-1]
    began = rec.origin_ns + 1e3 * min(one.start_us for one in rec.ranges if one.name == "aten::sum")
    assert before - 5_000_000 < began < after + 5_000_000
    monkeypatch.undo()
    with record() as rec:
        torch.ones(8).sum()
    assert rec.notes == []


def test_two_clocks_are_compared_where_nothing_came_between_them(monkeypatch):
    """A busy machine may set a process aside between reading one clock and the other."""
    from oddrank.record import collectives

    class Clocks:
        """The system's clock is 10**18 ns ahead; a reading takes 100 ns, and most are followed by a pause of 5 ms."""

        now, pauses = 0, 0

        def monotonic_ns(self):
            self.now += 100
            return self.now

        def time_ns(self):
            told = self.monotonic_ns() + 10**18
            self.pauses += 1
            self.now += 5_000_000 * (self.pauses != 4)
            return told

    monkeypatch.setattr(collectives, "time", Clocks())
    assert abs(collectives._epoch() - 10**18) < collectives.SLACK_NS


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


def test_only_calls_to_cuda_have_the_number_of_a_launch():
    calls = [
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "cudaMemcpyAsync",
        "custom::f",
        "current step",
        "cuda",
        "custom",
    ]
    assert [bool(_CUDA_CALL.match(name)) for name in calls] == [True, True, True, False, False, False, False]
    profile = Profile()
    profile.start()
    with torch.profiler.record_function("custom::f"):
        torch.ones(2)
    found = profile.stop()
    assert {event.launch for event in found if not _CUDA_CALL.match(event.name)} == {0}
    assert {event.system for event in found if event.name == "custom::f"} == {threading.get_native_id()}


@pytest.mark.slow
def test_the_profiler_writes_nothing_to_stderr():
    code = (
        "import torch\nfrom oddrank.record.profile import Profile\np = Profile(); p.start(); torch.ones(2) + 1\n"
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


def _behind_a_late_peer(rounds: int) -> list[bool]:
    """On a rank: profiles that end while a collective runs; whether each had ended by then."""
    import torch.distributed as dist

    ended = []
    for _ in range(rounds):
        dist.barrier()
        profile = Profile()
        profile.start()
        if dist.get_rank():
            time.sleep(0.02)
        work = dist.all_reduce(torch.ones(4), async_op=True)
        profile.stop()
        ended.append(work.is_completed())
    return ended


def test_a_profile_ends_after_the_collectives_that_write_into_it(ranks):
    # gloo writes a collective's end into a profile that may be freed by then, and the process dies of it later
    assert all(map(all, ranks.run(_behind_a_late_peer, 5).values()))


def test_a_collective_without_an_end_keeps_a_profile_for_a_while_only(ranks):
    def alone():
        import torch.distributed as dist

        dist.barrier()
        if dist.get_rank():
            time.sleep(0.5)
        work = dist.all_reduce(torch.ones(4), async_op=True)
        began = time.monotonic()
        ended = collectives_end(0.05)
        took = time.monotonic() - began
        work.wait()
        return ended, took

    ended, took = ranks.run(alone)[0]
    assert not ended and took < 0.4
