"""A torch profiler that is started and stopped by hand, its raw events, and the clock of their times.

`prof.events()` builds a tree of Python objects that takes seconds for thousands of events; the raw ones are read in
milliseconds. Kineto gives times since the epoch, and a system may set that clock while a program runs (NTP, or WSL2
after a sleep). They are brought to `time.monotonic_ns()`, which nobody sets and which a machine's processes share.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oddrank import torch_names

__all__ = [
    "BODY",
    "FORWARD",
    "STEP",
    "Profile",
    "RawEvent",
    "collectives_end",
    "shared_clock",
    "to_monotonic",
]

BODY = "oddrank.record"  # the mark around everything that was recorded
CLOCK = "oddrank.clock"  # short marks at both ends, whose times are known on both clocks
FORWARD = "oddrank.forward"  # the mark around one forward
STEP = "oddrank.step"  # the mark around more than a forward, such as a training step
SET_BACK = (
    "the system's clock was set back by more than this record's length while it was open, and then the profiler keeps"
    " no lengths: what is said here of forwards is wrong, so record again"
)
_SET_NS = 5_000_000  # by this much two clocks differ over a profile only where one of them was set
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TICKS = 3  # at each end; the system may run something else in the middle of one


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One range of the profiler. Times are nanoseconds of `time.monotonic_ns()`.

    Args:
        name: The profiler's name for it.
        start: When it began.
        end: When it ended.
        thread: The profiler's number of the host thread; -1 for a range of a GPU.
        stream: The GPU stream of a kernel or a copy; -1 on the host.
        is_async: Whether it belongs to no thread's stack, as gloo's transfers.
        shapes: The shapes of its input tensors such as '4x8, 8x8', where shapes were recorded.
        system: The operating system's number of the host thread. A call to CUDA can stand under another `thread`.
        launch: The number that a call to CUDA shares with the kernel or copy that it started.
    """

    name: str
    start: int
    end: int
    thread: int
    stream: int = -1
    is_async: bool = False
    shapes: str = ""
    system: int = 0
    launch: int = 0


class Profile:
    """A torch profiler around one block of code.

    Args:
        shapes: Record the shapes of each operator's inputs as well.

    After `stop`, `note` says what is wrong with the recording, or is ''.

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
        """Start the profiler.

        Raises:
            ValueError: If another torch profiler is running in this process.
        """
        if torch_names.profiler_running():
            # torch would let the second one start and give the first one no events
            raise ValueError(
                "a torch profiler is already running in this process, and recording needs it: end that one first"
            )
        from torch.profiler import ProfilerActivity, profile  # a trace is read where there is no torch

        torch_names.quiet_profiler()
        activities = [ProfilerActivity.CPU]
        if _on_gpu():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities, record_shapes=self._shapes)
        self._profiler.start()
        self._tick()

    def mark(self, name: str) -> Any:
        """Return a context manager that records its block as a range of this name."""
        return torch_names.profiler_mark(name)

    def stop(self) -> list[RawEvent]:
        """Stop the profiler, and return its events in no particular order."""
        self._tick()
        if _on_gpu():
            import torch

            torch.cuda.synchronize()  # or the kernels still running would be missing
        collectives_end()
        found: list[Any] = []
        try:
            self._profiler.stop()
            found = torch_names.profiler_events(self._profiler)
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
    """Wait until gloo has ended every collective that this process began.

    Call this before a profiler stops. gloo's threads write into the profile when a collective ends
    (`recordAsyncWorkProfilingInfo` in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), also into one that has ended
    and is freed: the process then dies, often much later. An `irecv` does the same and cannot be seen from here: wait
    for it inside the profile.

    Args:
        limit: The longest time to wait, in seconds.

    Returns:
        False if a collective has not ended within `limit`.

    >>> collectives_end()
    True
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    until = time.monotonic() + limit
    while any(
        not entry.get("retired", True) and str(entry.get("profiling_name")).startswith("gloo:")
        for entry in torch_names.flight_record(stacks=False)
    ):
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def shared_clock() -> str:
    """Return a name for this machine's monotonic clock, the same in two processes whose times can be compared.

    >>> shared_clock() == shared_clock() != ""
    True
    """
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return platform.node()


def to_monotonic(marks: dict[str, int], ticks: dict[str, tuple[int, int]]) -> Callable[[int], int]:
    """Make the function that converts a profile's times to the monotonic clock.

    Args:
        marks: For each mark by name, the middle of its range in the profile's time, in ns.
        ticks: For each mark by name, the monotonic clock before and after it, in ns.

    Returns:
        A function from the profile's nanoseconds to those of `time.monotonic_ns()`. It changes nothing where the
        profile lacks a mark.

    Kineto compares its counter with the system's clock when a profile begins and when it ends, and takes it as even in
    between (`ApproximateClockToUnixTimeConverter` in c10/util/ApproximateClock.cpp). So a clock that was set within a
    profile stretches all of its times, which is undone here; where it was set back by more than the profile's length,
    times run backwards, and only where things began can be told.

    >>> second = 1_000_000_000
    >>> at = to_monotonic({"begin": 7, "end": 7 + 8 * second}, {"begin": (90, 90), "end": (90 + 4 * second,) * 2})
    >>> (at(7 + 2 * second) - 90) / second
    1.0
    """
    if len(marks) < len(ticks) or not ticks:
        return lambda time: time  # another profiler took away what was recorded
    names = list(ticks)
    first, last = (
        min(part, key=lambda name: ticks[name][1] - ticks[name][0])
        for part in (names[: len(names) // 2], names[len(names) // 2 :])
    )
    theirs, ours = marks[first], sum(ticks[first]) // 2
    took_theirs, took_ours = marks[last] - theirs, sum(ticks[last]) // 2 - ours
    if abs(took_theirs - took_ours) < _SET_NS or not took_theirs:
        return lambda time: time + ours - theirs
    return lambda time: ours + (time - theirs) * took_ours // took_theirs


def _on_gpu() -> bool:
    """Whether this process has used a GPU: asking for GPU events would otherwise create a context for nothing."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_initialized()


_CUDA_CALL = re.compile(r"cu(?:da)?[A-Z]\w*$")  # cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync


def _raw(event: Any, shapes: bool, at: Callable[[int], int]) -> RawEvent | None:
    name, start = event.name(), event.start_ns()
    start, end = at(start), at(start + event.duration_ns())
    if "CPU" in str(event.device_type()):
        given = _shapes(event) if shapes else ""
        # operators have numbers of their own
        launch = event.correlation_id() if _CUDA_CALL.match(name) else 0
        system = event.device_resource_id()
        return RawEvent(
            name, start, end, event.start_thread_id(), -1, bool(event.is_async()), given, system, launch
        )
    if event.is_user_annotation():
        return None  # the host's ranges once more, as the GPU timeline shows them
    return RawEvent(name, start, end, -1, event.device_resource_id(), launch=event.correlation_id())


def _shapes(event: Any) -> str:
    """The shapes of the tensors of a call such as '4x8, 8x8'; a list of tensors counts as its tensors."""
    found = []
    for given in torch_names.event_shapes(event):
        tensors = given if given and isinstance(given[0], (list, tuple)) else [given]
        found += ["x".join(map(str, shape)) for shape in tensors if shape]
    return ", ".join(found)
