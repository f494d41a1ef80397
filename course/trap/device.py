"""On a GPU: how long the device itself works on a collective, and the floor that a CUDA graph's replay sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from course.trap.calls import FUNCTIONAL, IN_PLACE
from labkit import torch_compat

__all__ = ["measure"]

AHEAD_CYCLES = 4_000_000  # 2 ms at 2 GHz


def measure(
    collective: str, nbytes: int, made: Mapping[str, Any], rounds: int, backend: str
) -> list[dict[str, Any]]:
    """On a rank with a GPU: device time by CUDA events, host time apart, and a replay's; medians, in us a call.

    Only NCCL's collectives can be captured; with another backend the columns of the replay are None.
    """
    return [
        {
            "collective": collective,
            "bytes": nbytes,
            "form": form,
            **_timed(made[form][0], rounds, backend == "nccl"),
            **(_replayed(made[form], rounds) if backend == "nccl" else {"replay_device_us": None}),
        }
        for form in (IN_PLACE, FUNCTIONAL)
    ]


def _timed(call: Callable[[], Any], rounds: int, ahead: bool) -> dict[str, float]:
    """Host and device time of the same calls: events stand before and after each, in the stream that it ends in.

    ahead: the device is busy until the host has launched everything, or the first event would come long before the
    kernel, and the time between be the host's. Not for gloo, whose calls wait for the device.
    """
    host, device = [], []
    for _ in range(rounds):
        dist.barrier()
        torch.cuda.synchronize()
        if ahead:
            torch_compat.cuda_sleep(AHEAD_CYCLES)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        began = time.perf_counter()
        value = call()
        host.append(time.perf_counter() - began)
        if hasattr(value, "wait"):
            value.wait()  # the event has to come after the result, not after the launch
        after.record()
        torch.cuda.synchronize()
        device.append(before.elapsed_time(after))
    return {"host_us": median(host) * 1e6, "device_us": median(device) * 1e3}


def _replayed(stages: tuple[Callable[[], Any], Callable[[Any], Any]], rounds: int) -> dict[str, float]:
    """The same call captured once and replayed: no Python, no dispatcher, no wrapper."""

    def once() -> None:
        value = stages[0]()
        if hasattr(value, "wait"):
            value.wait()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # capture wants a warm communicator, on a stream of its own
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # another thread asks how far collectives are, which would break a capture of every thread's
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        once()
    timed = _timed(graph.replay, rounds, True)
    return {"replay_host_us": timed["host_us"], "replay_device_us": timed["device_us"]}
