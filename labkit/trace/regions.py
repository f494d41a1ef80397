"""Only where compiled regions begin, without a profiler: a forward hardly notices, and operators are not seen."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType

from labkit import torch_compat
from labkit.trace.events import REGION
from labkit.trace.profiler import RawEvent

__all__ = ["Regions"]


class Regions:
    """Stands in for a Profile. `identify` gives the compile id of the code that ran, '' for code that it does not know.

    A region is a moment here: Dynamo's code says when it begins and not when it ends.
    """

    def __init__(self, identify: Callable[[CodeType], str]) -> None:
        self._identify = identify
        self._entered: list[tuple[CodeType, int, int]] = []
        self._marks: list[RawEvent] = []
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        entered, now, thread = self._entered.append, time.time_ns, threading.get_ident

        def seen(code: CodeType) -> None:
            entered((code, now(), thread()))

        self._undo = torch_compat.on_region_entry(seen)

    @contextlib.contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """A range with a name, as the profiler's own marks."""
        began = time.time_ns()
        try:
            yield
        finally:
            self._marks.append(RawEvent(name, began, time.time_ns(), threading.get_ident()))

    def stop(self) -> list[RawEvent]:
        """Stop looking, and return the marks and the moments, unordered."""
        if self._undo:
            self._undo()
        ids = {code: self._identify(code) for code, _, _ in self._entered}
        found = [
            RawEvent(REGION + (ids[code] or "?/?"), at, at + 1, thread) for code, at, thread in self._entered
        ]
        return [*self._marks, *found]
