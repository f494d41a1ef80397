"""Where compiled code begins, without a profiler: a forward hardly notices, and operators are not seen."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType

from labkit import torch_compat
from labkit.trace.events import REGION
from labkit.trace.profiler import RawEvent

__all__ = ["Regions", "beside"]


class Regions:
    """Stands in for a Profile, or beside one. `identify` gives the compile id of code that ran, '' where it knows none.

    A region is a moment here: Dynamo says when its code begins and not when it ends. All threads are seen, where a
    profiler sees its own and those that autograd starts.
    """

    def __init__(self, identify: Callable[[CodeType], str]) -> None:
        self._identify = identify
        self._entered: list[tuple[CodeType, int, int]] = []
        self._marks: list[RawEvent] = []
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        entered, now, thread = self._entered.append, time.monotonic_ns, threading.get_native_id

        def seen(code: CodeType) -> None:
            entered((code, now(), thread()))

        self._undo = torch_compat.on_region_entry(seen)

    @contextlib.contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """A range with a name, as the profiler's own marks."""
        began, thread = time.monotonic_ns(), threading.get_native_id()
        try:
            yield
        finally:
            self._marks.append(RawEvent(name, began, time.monotonic_ns(), -thread, system=thread))

    def stop(self) -> list[RawEvent]:
        """Stop looking, and return the marks and the moments, unordered."""
        if self._undo:
            self._undo()
        ids: dict[int, str] = {}
        for code, _, _ in self._entered:
            if id(code) not in ids:  # two functions can be equal as code
                ids[id(code)] = self._identify(code) or "?/?"
        # the profiler numbers threads from 1 on; the system's own numbers are kept apart from those
        found = [
            RawEvent(REGION + ids[id(code)], at, at + 1, -thread, system=thread)
            for code, at, thread in self._entered
        ]
        return [*self._marks, *found]


def beside(profiled: Sequence[RawEvent], entered: Sequence[RawEvent]) -> list[RawEvent]:
    """A profile's events, and the regions entered on threads that the profiler did not follow.

    >>> own, other = (RawEvent(REGION + "0/0", 5, 6, -thread, system=thread) for thread in (71, 72))
    >>> [e.system for e in beside([RawEvent(REGION + "0/0", 4, 9, 1, system=71)], [own, other])]
    [71, 72]
    """
    followed = {event.system for event in profiled if event.name.startswith(REGION)}
    return [*profiled, *(event for event in entered if event.system not in followed)]
