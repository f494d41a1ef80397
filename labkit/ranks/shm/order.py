"""Memory ordering: what one rank wrote before it raised its flag must be seen by whoever saw the flag."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable

_lock = threading.Lock()


def _fence() -> None:
    # Acquire after release on one lock orders everything before the release with everything after the acquire (ARMv8:
    # [L]; po; [A]). Python offers no fence of its own. Reasoned from the architecture's manual, not tested on ARM.
    _lock.acquire()
    _lock.release()
    _lock.acquire()
    _lock.release()


# x86 keeps stores in order, loads in order, and loads before later stores (TSO), which is all that the protocol
# needs. A word is read and written whole: memoryview copies an aligned int64 with one instruction.
fence: Callable[[], None] | None = None if platform.machine().lower() in ("x86_64", "amd64") else _fence
