"""A heartbeat, a watchdog that ends a worker whose leader is silent, and a time limit that crashes a hung call.

Enforces "crash rather than hang" of topic 12's P0 checklist. A blocking collective cannot be interrupted from inside
its process, so the process ends: with its stacks on stderr and an exit code that says why. Copy this file; it needs
only torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

__all__ = ["ORPHANED", "Heartbeat", "Watchdog", "crash_after"]

ORPHANED = 17  # the exit code of a worker whose leader went silent


class _Background:
    """A thread that runs until `stop()` or the end of a `with` block."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=target, daemon=True, name=name)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and return when it has ended."""
        self._over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Heartbeat(_Background):
    """Renew a key in the store from a background thread, until `stop()` or the end of the process.

    It says that the process lives, not that it gets on: a leader that waits for ever still beats, and that case is
    `crash_after`'s.

    Args:
        store: A c10d store that the watchdogs can reach.
        every: The seconds between two beats.
        key: The key to renew.

    Raises:
        ValueError: If `every` is not positive.

    >>> import torch.distributed as dist
    >>> store = dist.HashStore()
    >>> with Heartbeat(store, every=0.05):
    ...     store.get("heartbeat")
    b'1'
    """

    def __init__(self, store: Any, every: float = 1.0, key: str = "heartbeat") -> None:
        if not every > 0:
            raise ValueError(f"every must be a positive number of seconds, got {every!r}")
        self.store, self.every, self.key = _own(store), every, key
        self.store.set(key, "1")
        super().__init__(self._beat, "heartbeat")

    def _beat(self) -> None:
        number = 1
        while not self._over.wait(self.every):
            number += 1
            try:
                self.store.set(self.key, str(number))
            except RuntimeError:  # the store is gone, and with it whoever listened
                return


class Watchdog(_Background):
    """End this worker process when the leader's heartbeat has not changed for `window` seconds.

    It looks from a thread and a connection of its own, so it works while the main thread is stuck in a collective. A
    store that cannot be reached counts as silence; time in which this process stood still does not.

    Args:
        store: The c10d store that the heartbeat writes to.
        window: The longest silence, in seconds. It counts from the start: start it after the leader's first beat.
        key: The heartbeat's key.
        on_silence: Called with the seconds of silence, instead of ending the process with exit code 17; for tests.

    Raises:
        ValueError: If `window` is not positive.

    >>> import torch.distributed as dist
    >>> heard = threading.Event()
    >>> with Watchdog(dist.HashStore(), window=0.1, on_silence=lambda seconds: heard.set()):
    ...     heard.wait(10)
    True
    """

    def __init__(
        self,
        store: Any,
        window: float = 10.0,
        key: str = "heartbeat",
        on_silence: Callable[[float], Any] | None = None,
    ) -> None:
        if not window > 0:
            raise ValueError(f"window must be a positive number of seconds, got {window!r}")
        self.store, self.window, self.key = _own(store), window, key
        self.on_silence = on_silence or _leave
        self._heard = time.monotonic()
        super().__init__(self._watch, "watchdog")
        # a leader that was stopped keeps the store's port open and answers nothing: whoever asks it cannot also watch
        threading.Thread(target=self._listen, daemon=True, name="watchdog-ear").start()

    def _watch(self) -> None:
        pause, awake = min(self.window / 20, 1.0), time.monotonic()
        while not self._over.wait(pause):
            now = time.monotonic()
            # where a call kept Python's lock, this process stood still, which says nothing about the leader
            self._heard += max(0.0, now - awake - pause)
            awake = now
            silent = now - self._heard
            if silent > self.window:
                self.on_silence(silent)
                return

    def _listen(self) -> None:
        last = None
        while not self._over.wait(min(self.window / 20, 1.0)):
            try:
                beat = self.store.get(self.key) if self.store.check([self.key]) else None
            except RuntimeError:
                continue
            if beat is not None and beat != last:
                last, self._heard = beat, time.monotonic()


@contextlib.contextmanager
def crash_after(seconds: float) -> Iterator[None]:
    """End the process (exit code 1, all stacks on stderr) unless the block ends within `seconds`.

    The stacks are written without Python's help (`faulthandler.dump_traceback_later`), so a collective that holds on
    to the interpreter does not stop it. One such block at a time in a
    process. Raises ValueError for no positive number.

    >>> with crash_after(60):
    ...     sum(range(10))
    45
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be a positive number, got {seconds!r}")
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _own(store: Any) -> Any:
    """A connection of its own: a thread that shares one would wait for whoever waits on it."""
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        return store


def _leave(silent: float) -> None:
    said = f"watchdog: no heartbeat of the leader for {silent:.1f} s, this worker leaves with exit code {ORPHANED}\n"
    os.write(2, said.encode())
    os._exit(ORPHANED)
