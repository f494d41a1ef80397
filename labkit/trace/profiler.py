"""torch.profiler started and stopped by hand, and its raw events: names and integer times, nothing derived.

`prof.events()` builds a tree of Python objects that takes seconds for thousands of events; the raw ones are read in
milliseconds. Kineto gives times since the epoch, and a system may set that clock while a program runs (NTP, or WSL2
after a sleep). They are brought to `time.monotonic_ns()`, which nobody sets and which a machine's processes share.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from labkit import torch_compat
from labkit.trace.clock import to_monotonic

__all__ = ["BODY", "FORWARD", "STEP", "Profile", "RawEvent", "collectives_end"]

BODY = "labkit.record"  # the mark around everything that was recorded
CLOCK = "labkit.clock"  # short marks at both ends, whose times are known on both clocks
FORWARD = "labkit.forward"  # the mark around one forward
STEP = "labkit.step"  # the mark around more than a forward, such as a training step
SET_BACK = (
    "the system's clock was set back by more than this record's length while it was open, and then the profiler keeps"
    " no lengths: what is said here of forwards is wrong, so record again"
)
_TICKS = 3  # at each end; the system may run something else in the middle of one


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One range of the profiler: nanoseconds of `time.monotonic_ns()`, and the thread or stream it ran on."""

    name: str
    start: int
    end: int
    thread: int
    stream: int = -1  # of a GPU, where the range is a kernel or a copy; -1 on the host
    floating: bool = False  # belongs to no thread's stack: an asynchronous range such as gloo's
    shapes: str = ""  # of the tensors it was given, where shapes were asked for
    system: int = (
        0  # the system's number of a host's thread: a call to CUDA can stand under another one's `thread`
    )
    launch: int = 0  # the number that a host's call to CUDA shares with the kernel or copy that it started


class Profile:
    """A profiler for one block of code. Raises ValueError when another one is running in this process.

    >>> import torch
    >>> profile = Profile()
    >>> profile.start()
    >>> _ = torch.ones(3).sum()
    >>> "aten::sum" in {event.name for event in profile.stop()}
    True
    """

    def __init__(self, shapes: bool = False) -> None:
        self._shapes = shapes
        self._profiler: Any = None
        self.note = ""  # what is wrong with what it saw, after `stop`
        self._ticks: dict[str, tuple[int, int]] = {}  # a mark's name: the monotonic clock before and after it

    def start(self) -> None:
        if torch_compat.profiler_running():
            # torch would let the second one start and give the first one no events
            raise ValueError(
                "a torch profiler is already running in this process, and recording needs it: end that one first"
            )
        torch_compat.quiet_profiler()
        activities = [ProfilerActivity.CPU]
        if _on_gpu():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities, record_shapes=self._shapes)
        self._profiler.start()
        self._tick()

    def mark(self, name: str) -> Any:
        """A range with a name, as a context manager."""
        return torch_compat.profiler_mark(name)

    def stop(self) -> list[RawEvent]:
        """End the profiler and return what it saw, unordered."""
        self._tick()
        if _on_gpu():
            torch.cuda.synchronize()  # or the kernels still running would be missing
        collectives_end()
        found: list[Any] = []
        try:
            self._profiler.stop()
            found = torch_compat.profiler_events(self._profiler)
        except RuntimeError as error:  # torch 2.11, where another profiler inside has ended this one
            if "not running" not in str(error):
                raise
        finally:
            self._profiler = None
        marks = {
            event.name(): event.start_ns() + event.duration_ns() // 2
            for event in found
            if event.name() in self._ticks
        }
        names = [name for name in self._ticks if name in marks]
        if names and marks[names[-1]] <= marks[names[0]]:
            self.note = SET_BACK
        at = to_monotonic(marks, self._ticks)
        return [raw for event in found if (raw := _raw(event, self._shapes, at)) and raw.name not in marks]

    def _tick(self) -> None:
        for _ in range(_TICKS):
            name, before = f"{CLOCK} {len(self._ticks)}", time.monotonic_ns()
            with self.mark(name):
                pass
            self._ticks[name] = (before, time.monotonic_ns())


def collectives_end(limit: float = 5.0) -> bool:
    """Wait until gloo has ended every collective that this process began; False if one has not within `limit` seconds.

    Call it before a profiler stops. gloo's threads write into the profile when a collective ends
    (`recordAsyncWorkProfilingInfo` in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), also into one that has ended
    and is freed: the process then dies, often much later. An `irecv` does the same and cannot be seen from here: wait
    for it inside the profile.

    >>> collectives_end()
    True
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    until = time.monotonic() + limit
    while any(
        not entry.get("retired", True) and str(entry.get("profiling_name")).startswith("gloo:")
        for entry in torch_compat.flight_record(stacks=False)
    ):
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def _on_gpu() -> bool:
    """Whether this process has used a GPU: asking for GPU events would otherwise create a context for nothing."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()


_CUDA_CALL = re.compile(r"cu(?:da)?[A-Z]\w*$")  # cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync


def _raw(event: Any, shapes: bool, at: Callable[[int], int]) -> RawEvent | None:
    name, start = event.name(), event.start_ns()
    start, end = at(start), at(start + event.duration_ns())
    if "CPU" in str(event.device_type()):
        floating = bool(event.is_async())
        given = _shapes(event) if shapes else ""
        # operators have numbers of their own
        launch = event.correlation_id() if _CUDA_CALL.match(name) else 0
        system = event.device_resource_id()
        return RawEvent(name, start, end, event.start_thread_id(), -1, floating, given, system, launch)
    if event.is_user_annotation():
        return None  # the host's ranges once more, as the GPU timeline shows them
    return RawEvent(name, start, end, -1, event.device_resource_id(), launch=event.correlation_id())


def _shapes(event: Any) -> str:
    """The shapes of the tensors of a call such as '4x8, 8x8'; a list of tensors counts as its tensors."""
    found = []
    for given in torch_compat.event_shapes(event):
        tensors = given if given and isinstance(given[0], (list, tuple)) else [given]
        found += ["x".join(map(str, shape)) for shape in tensors if shape]
    return ", ".join(found)
