"""Entries into compiled regions, recorded without a profiler: next to no cost, and operators are not seen."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType

from oddrank import torch_names
from oddrank.record.profile import RawEvent
from oddrank.record.timeline import REGION

__all__ = ["RegionListener", "add_unprofiled_threads"]


class RegionListener:
    """Records when compiled regions are entered, with the methods of `Profile`.

    A region is a moment here: Dynamo says when its code begins and not when it ends. All threads are seen, where a
    profiler sees its own and those that autograd starts.

    Args:
        identify: A function from code that ran to the id of the compile that made it, '' where it knows none.
    """

    def __init__(self, identify: Callable[[CodeType], str]) -> None:
        self._identify = identify
        self._entered: list[tuple[CodeType, int, int]] = []
        self._marks: list[RawEvent] = []
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        """Start to listen."""
        entered, now, thread = self._entered.append, time.monotonic_ns, threading.get_native_id

        def seen(code: CodeType) -> None:
            entered((code, now(), thread()))

        self._undo = torch_names.on_region_entry(seen)

    @contextlib.contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """Record the block as a range of this name."""
        began, thread = time.monotonic_ns(), threading.get_native_id()
        try:
            yield
        finally:
            self._marks.append(RawEvent(name, began, time.monotonic_ns(), -thread, system=thread))

    def stop(self) -> list[RawEvent]:
        """Stop, and return the marks and the entries in no particular order."""
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


def add_unprofiled_threads(profiled: Sequence[RawEvent], entered: Sequence[RawEvent]) -> list[RawEvent]:
    """Add to a profile's events the regions entered on threads that the profiler did not follow.

    Args:
        profiled: The events of a `Profile`.
        entered: The events of a `RegionListener` of the same block.

    Returns:
        All of `profiled`, and those of `entered` whose thread has no region in `profiled`.

    >>> own, other = (RawEvent(REGION + "0/0", 5, 6, -thread, system=thread) for thread in (71, 72))
    >>> profiled = [RawEvent(REGION + "0/0", 4, 9, 1, system=71)]
    >>> [e.system for e in add_unprofiled_threads(profiled, [own, other])]
    [71, 72]
    """
    followed = {event.system for event in profiled if event.name.startswith(REGION)}
    return [*profiled, *(event for event in entered if event.system not in followed)]
