"""Interrupts: the stop of a call that runs in any thread, and SIGINT held back while ranks are replaced.

The stop button raises KeyboardInterrupt in the main thread by SIGINT. A call in another thread, as a bench makes one,
has an event instead, which it looks at while it waits.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_guard = threading.Lock()
_stops: dict[int, threading.Event] = {}  # of the call that a thread is in, by the thread


@contextmanager
def no_interrupt(linger: float = 0.0) -> Iterator[None]:
    """Ignore SIGINT in a block, such as the replacement of ranks, which a second press of stop must not break off.

    Does nothing outside the main thread.

    Args:
        linger: Seconds after the block in which a press still counts as part of the one before; it would otherwise
            hit IPython while it shows the error.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: a handler that was not set from Python, which cannot be put back
    previous = signal.signal(signal.SIGINT, lambda *_: None) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _after(time.monotonic() + linger, previous) if linger else previous)


def _after(until: float, previous: Any) -> Callable[[int, FrameType | None], None]:
    """Return a SIGINT handler that does nothing before `until`, and then restores the previous handler."""

    def handler(number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= until:
            signal.signal(signal.SIGINT, previous)
            signal.raise_signal(number)

    return handler


def interrupt_thread(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread, as the stop button does in the main one.

    A call on ranks ends as by `Ranks.interrupt`. Other code ends at its next line of Python: what waits in C, such as
    `time.sleep`, ends its wait first.
    """
    with _guard:  # while it is held, no thread enters a call: no exception falls into the middle of one
        if (stop := _stops.get(thread.ident or 0)) is not None:
            stop.set()
        elif thread.is_alive():
            _raise_in(thread.ident, KeyboardInterrupt)


def forget_interrupt() -> None:
    """Take back an exception that `interrupt_thread` has meant for this thread, and that was not raised yet."""
    with _guard:
        _raise_in(threading.get_ident(), None)


def _raise_in(ident: int | None, error: type[BaseException] | None) -> None:
    what = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident or 0), what)


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """A block that an event interrupts in this thread; a stop that came too late for the block comes after it."""
    stop, me = threading.Event(), threading.get_ident()
    with _guard:
        _stops[me] = stop
    try:
        yield stop
    finally:
        with _guard:
            _stops.pop(me, None)
    if stop.is_set():
        raise KeyboardInterrupt
