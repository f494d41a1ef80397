"""Holding SIGINT back while ranks are being replaced."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
