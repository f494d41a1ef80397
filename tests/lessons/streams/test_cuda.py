"""Torch code with streams on a GPU: what the profiler saw is a timeline."""

from __future__ import annotations

import pytest
import torch

from course.shared.streams import StreamError
from course.streams.cuda import on_gpu
from labkit import lessons
from ledger.trials.overlap import cycles_per_ms

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_a_clear_error():
    with pytest.raises(StreamError, match="no CUDA device here: capture the function"):
        on_gpu(torch.sin, torch.ones(2))


def timed(wait: bool):
    """A long kernel on the current stream and a short one on another, which waits for it or does not."""
    busy = int(20 * cycles_per_ms())

    def both(x):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        torch.cuda._sleep(busy)
        if wait:
            side.wait_stream(here)
        with torch.cuda.stream(side):
            y = x + 1
        here.wait_stream(side)
        return y

    spans = on_gpu(both, torch.ones(4, device="cuda")).spans.set_index("kind")
    return spans[spans["name"].str.contains("spin")].iloc[0], spans[~spans["name"].str.contains("spin")].iloc[
        0
    ]


@gpu
@pytest.mark.gpu
def test_a_wait_holds_up_the_other_stream_on_a_gpu_and_nothing_else_does():
    long, short = timed(wait=True)
    assert short["start"] >= long["end"] - 0.1 and short["lane"] != long["lane"]
    long, short = timed(wait=False)
    assert short["start"] < long["end"]


@gpu
@pytest.mark.gpu
def test_two_streams_of_the_lesson_are_two_lanes_on_a_gpu():
    program, x = lessons.program("streams"), torch.full((256, 256), 1 / 256, device="cuda")
    one, two = on_gpu(program.one_stream, x), on_gpu(program.two_streams, x)
    assert (one.label, one.unit) == ("cuda · 1 gpu", "ms")
    assert len(one.lanes()) == 1 and len(two.lanes()) == 2
    assert torch.allclose(program.one_stream(x), program.two_streams(x))
